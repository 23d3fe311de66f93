"""`warren tasks artifacts`, `get` and `archive`: what a task has left, here."""

from dataclasses import asdict
from pathlib import Path

from warren.cli import errors
from warren.cli.archives import carried, extracted
from warren.cli.context import Context
from warren.cli.errors import NoSuchThing, UsageError
from warren.cli.ids import find_task
from warren_console.output import moment
from warren_console.text import size

TITLES = ("NAME", "KIND", ">SIZE", "AT", "SHA-256")


def artifacts(context: Context) -> int:
    out = context.out
    found = find_task(context.warren, context.asked.task).artifacts()
    if out.as_json:
        out.json({"artifacts": [asdict(each) for each in found]})
    else:
        rows = [
            (each.name, each.kind, size(each.bytes), moment(each.at_ms), (each.sha256 or "-")[:16]) for each in found
        ]
        out.table(TITLES, rows)
    return errors.DONE


def get(context: Context) -> int:
    task, name = find_task(context.warren, context.asked.task), context.asked.artifact
    found = next((each for each in task.artifacts() if each.name == name), None)
    if found is None:
        raise NoSuchThing(f"{task.id} has no artifact {name!r}", hint=f"see `warren tasks artifacts {task.id}`")
    if context.asked.output is None and (Path(name).name != name or name in (".", "..")):
        raise UsageError(f"{name!r} is no name for a file here", hint="say where to: -o FILE")
    target = context.asked.output or name
    return carried(context, target, lambda to, bar: task.download(found, to, progress=bar))


def archive(context: Context) -> int:
    task = find_task(context.warren, context.asked.task)
    if context.asked.extract is not None:
        return extracted(context, Path(context.asked.extract), lambda to, bar: task.archive(to, progress=bar))
    target = context.asked.output or f"{task.id}.tar.zst"
    return carried(context, target, lambda to, bar: task.archive(to, progress=bar))
