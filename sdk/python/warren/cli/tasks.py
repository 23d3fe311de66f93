"""`warren tasks`: look at tasks, steer them, answer them."""

from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.diffs import show_diff
from warren.cli.errors import UsageError
from warren.cli.execute import STDOUT
from warren.cli.follow import follow
from warren.cli.ids import find_task
from warren.cli.program import say
from warren.cli.progress import busy
from warren.cli.several import each_named
from warren.task_models import Question, Step, TaskInfo
from warren.tasks import Task
from warren_console.network import in_short
from warren_console.output import moment, write_all
from warren_console.summary import usage_text
from warren_console.text import clean, cut, dollars, many, relative, shape, span
from warren_console.timeline import diff_text, question_text, said

TITLES = ("ID", "STATE", "AGENT", ">STEPS", ">TOKENS", ">COST", ">TOOK", "CREATED", "PROMPT")
STEPS = (">STEP", "TOOL", ">TOOK", ">OUTPUT", "WHAT")
CHANGES = ("prompt", "agent", "model", "ref")


def ls(context: Context) -> int:
    asked, out = context.asked, context.out
    states = asked.task_state.split(",") if asked.task_state else None
    listing = context.warren.tasks.list(states, asked.agent, asked.owner)
    with busy("asking the hosts"):
        infos = [task.info for task in islice(listing, asked.limit)]
    if out.as_json:
        out.json({"tasks": [asdict(info) for info in infos], "incomplete": sorted(listing.incomplete)})
    elif asked.quiet:
        for info in infos:
            out.line(info.id)
    else:
        out.table(TITLES, [_cells(info, out.now_ms) for info in infos])
    if listing.incomplete:
        say(f"the list is not whole: {', '.join(sorted(listing.incomplete))} cannot be asked")
    return errors.DONE


def _cells(info: TaskInfo, now_ms: int) -> tuple[object, ...]:
    usage = info.usage
    return (
        info.id,
        "waits" if info.waiting and not info.is_over else info.state,
        info.agent,
        usage.steps,
        many(usage.tokens),
        "-" if usage.usd is None else dollars(usage.usd, is_estimate=usage.usd_is_estimate),
        span(usage.wall_ms / 1000),
        relative(info.created_ms, now_ms),
        " ".join(info.prompt.split()),
    )


def show(context: Context) -> int:
    out = context.out
    info = find_task(context.warren, context.asked.task).info
    if out.as_json:
        out.json(asdict(info))
    else:
        out.facts(_facts(info, out.now_ms))
    return errors.DONE


def _facts(info: TaskInfo, now_ms: int) -> dict[str, object]:
    times = {name: getattr(info, f"{name}_ms") for name in ("created", "started", "ended")}
    told = {name: f"{moment(at)} ({relative(at, now_ms)})" for name, at in times.items() if at is not None}
    size = (info.vcpus, info.memory_mb, info.disk_mb)
    return {
        "id": info.id,
        "state": info.state + (f" ({info.phase})" if info.phase and not info.is_over else ""),
        **({"reason": f"{said(info.reason, 'message')} ({said(info.reason, 'code')})"} if info.reason else {}),
        **{f"waits {each.id}": question_text(asdict(each)) for each in info.waiting},
        "owner": info.owner or "-",
        "agent": info.agent + (f" ({info.model})" if info.model else ""),
        "prompt": cut(" ".join(info.prompt.split()), 400),
        "repository": (info.repo or "-") + (f" @ {info.ref}" if info.ref else ""),
        **({"workspace": info.workspace} if info.workspace else {}),
        "branch": (info.branch or "-") + (" (is pushed)" if info.push else ""),
        "sandbox": info.sandbox or "-",
        **({} if None in size else {"size": shape(*size)}),  # type: ignore[arg-type]
        "network": in_short(None if info.network is None else asdict(info.network)),
        **told,
        "used": usage_text(asdict(info)),
        "caps": ", ".join(f"{name} {value}" for name, value in info.caps.items() if value is not None) or "-",
        **_outcome(info),
        **({"retry of": info.retry_of} if info.retry_of else {}),
        **{f"metadata {name}": value for name, value in info.metadata.items()},
    }


def _outcome(info: TaskInfo) -> dict[str, object]:
    result: Any = info.result or {}
    facts: dict[str, object] = {"changes": diff_text(result["diff"])} if isinstance(result.get("diff"), dict) else {}
    for number, each in enumerate(result.get("commits") or ()):
        facts[f"commit {number + 1}"] = f"{said(each, 'hash')[:10]} {said(each, 'subject')}"
    if summary := said(result, "summary"):
        facts["summary"] = " ".join(summary.split())
    return facts


def watch(context: Context) -> int:
    return follow(context, find_task(context.warren, context.asked.task), context.asked.after)


def stop(context: Context) -> int:
    return _each(context, "stopping", Task.stop)


def pause(context: Context) -> int:
    return _each(context, "pausing", Task.pause)


def resume(context: Context) -> int:
    return _each(context, "resuming", Task.resume)


def _each(context: Context, doing: str, act: Callable[[Task], TaskInfo]) -> int:
    infos, code = each_named(
        context,
        context.asked.tasks,
        doing,
        lambda typed: act(find_task(context.warren, typed)),
        lambda info: f"{info.id} {info.state}",
    )
    if context.out.as_json:
        context.out.json({"tasks": [asdict(info) for info in infos]})
    return code


def approve(context: Context) -> int:
    return _say(context, lambda task, question, text: task.approve(question.id, text))


def reject(context: Context) -> int:
    return _say(context, lambda task, question, text: task.reject(question.id, text))


def answer(context: Context) -> int:
    return _say(context, lambda task, question, text: task.answer(question.id, text))


def _say(context: Context, act: Callable[[Task, Question, str], TaskInfo]) -> int:
    task = find_task(context.warren, context.asked.task)
    question = _question(task, context.asked.question)
    act(task, question, context.asked.text)
    return _done(context, task, question.id)


def instruct(context: Context) -> int:
    task = find_task(context.warren, context.asked.task)
    task.instruct(context.asked.text)
    return _done(context, task, "told")


def _done(context: Context, task: Task, what: str) -> int:
    if context.out.as_json:
        context.out.json(asdict(task.info))
    else:
        context.out.line(f"{task.id} {what}")
    return errors.DONE


def _question(task: Task, typed: str | None) -> Question:
    """The one that was named, or the only one that is open. Whether a named one is open is the host's to say."""
    if typed is not None:
        return Question(typed, "")
    if len(task.waiting) == 1:
        return task.waiting[0]
    named = ", ".join(question.id for question in task.waiting)
    problem = f"{task.id} asks several things ({named}): say which" if named else f"{task.id} asks nothing now"
    raise UsageError(problem, hint=f"see `warren tasks show {task.id}`")


def diff(context: Context) -> int:
    out = context.out
    found = find_task(context.warren, context.asked.task).diff()
    if out.as_json:
        out.json({"diff": found.text, "is_truncated": found.is_truncated})
    elif out.is_terminal:
        show_diff(out, found.text)
    else:
        write_all(STDOUT, found.data)
    if found.is_truncated:
        say("that is not all of it: it is too long")
    return errors.DONE


def steps(context: Context) -> int:
    out = context.out
    found = list(find_task(context.warren, context.asked.task).steps(context.asked.after))
    if out.as_json:
        out.json({"steps": [asdict(step) for step in found]})
    else:
        out.table(STEPS, [_step(step) for step in found])
    return errors.DONE


def _step(step: Step) -> tuple[object, ...]:
    is_over = step.started_ms is not None and step.ended_ms is not None
    took = f"{(step.ended_ms - step.started_ms) / 1000:.1f}s" if is_over else "-"  # type: ignore[operator]
    arguments = step.arguments if isinstance(step.arguments, dict) else {"": step.arguments}
    words = said(arguments, "command") or " ".join(
        f"{name}={said(arguments, name)}" if name else said(arguments, name) for name in arguments
    )
    what = words or step.thought or step.output or ""
    tool = (step.tool or "-") + (" ✗" if step.is_error else "")
    return step.number, tool, took, many(step.output_bytes or 0), cut(" ".join(clean(what).split()), 400)


def retry(context: Context) -> int:
    asked, out = context.asked, context.out
    changes = {name: getattr(asked, name) for name in CHANGES if getattr(asked, name) is not None}
    with busy("making a task"):
        task = find_task(context.warren, asked.task).retry(**changes)
    if not asked.detach:
        return follow(context, task)
    if out.as_json:
        out.json(asdict(task.info))
    else:
        out.line(task.id)
    return errors.DONE
