"""`pooldctl drain` and `undrain`: empty the host, for maintenance, and open it again."""

from typing import Any

from contract.states import State
from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.errors import CtlError, Unreachable
from warren_console.text import size

RESUME_ALL = "pooldctl sandboxes ls -q --state paused | xargs -r pooldctl sandboxes resume"
# What is told of each step, of a sandbox or of the whole.
STEPS = {
    "begun": "drain {drain} is under way: {why}",
    "emptying": "{sandboxes} to move, {running} of them running",
    "pausing": "pausing",
    "hibernating": "into the store",
    "hibernated": "hibernated, {size}",
    "failed": "not moved: {why}",
    "given_up": "given up: {why}",
    "handing_over": "handing over to {host}",
    "handed_over": "{host} has this host's lease",
    "carried_on": "{host} has everything that was here",
    "resumed": "resumed at {host}",
    "asleep": "sleeps at {host}: {why}",
    "undoing": "undoing it: {why}",
}


def drain(context: Context) -> int:
    """Tell of each sandbox as it is done. Fails if one could not be; interrupted, poold goes on by itself."""
    out, asked = context.out, context.asked
    mode = "destroy" if asked.destroy else "pause" if asked.in_place else "move"
    body: dict[str, Any] = {"mode": mode}
    if mode == "move":
        body |= {"timeout_sec": asked.timeout_sec, "force": asked.force}
    with context.poold.stream("POST", "/admin/drain", body) as events:
        for event in events:
            if out.as_json:
                out.json_line({"event": event.kind, **event.data})
            elif event.kind == "progress":
                out.line(_line(event.data))
            if event.kind == "error":
                raise CtlError(f"{event.data.get('code')}: {event.data.get('message')}")
            if event.kind == "drained":
                return _moved(context, event.data) if mode == "move" else _ended(context, event.data)
    hint = "see pooldctl status, then drain it again: one that was under way goes on, and is told from where it is"
    raise Unreachable("poold went away before the host was drained", hint=hint)


def _line(told: dict[str, Any]) -> str:
    sandbox = told.get("sandbox")
    if "step" not in told:
        return f"{sandbox or '-'} done, {told['left']} left"
    known = {"host": "another host", "why": "?", **{name: value for name, value in told.items() if value is not None}}
    line = STEPS.get(told["step"], told["step"]).format_map({**known, "size": size(told.get("bytes") or 0)})
    return line if sandbox is None else f"{sandbox} {line}"


def _moved(context: Context, told: dict[str, Any]) -> int:
    """Of a drain that moves everything. What was left anywhere else than asked for makes it a failure."""
    left = {name: told.get(name) or {} for name in ("failed", "asleep", "unknown")}
    is_done = not any(left.values()) and told.get("undone") is None
    if not context.out.as_json:
        for line in _summary(told, left):
            context.out.line(line)
    return errors.DONE if is_done else errors.FAILED


def _summary(told: dict[str, Any], left: dict[str, Any]) -> list[str]:
    if told.get("undone") is not None:
        lines = [f"undone, everything is here as before: {told['undone']}"]
        lines += [f"{name} kept it from being moved: {why}" for name, why in left["failed"].items()]
        return lines if not left["failed"] else [*lines, "drain --force moves the rest and gives these up"]
    where = f" to {told['to']}" if told.get("to") else ""
    counts = ", ".join(f"{len(each)} {name}" for name, each in left.items())
    lines = [f"drained{where}: {len(told.get('moved') or {})} running there, {counts}"]
    lines += [f"{name}: its state there was not known in time" for name in left["unknown"]]
    return [*lines, "this host is empty and takes nothing, until pooldctl undrain"]


def _ended(context: Context, counts: dict[str, Any]) -> int:
    paused, destroyed, failed = (_count(counts.get(name)) for name in ("paused", "destroyed", "failed"))
    if not context.out.as_json:
        context.out.line(f"drained: {paused} paused, {destroyed} destroyed, {failed} failed")
        if paused:
            context.out.line("what is paused stays so, also after pooldctl undrain, until it is resumed")
    return errors.FAILED if failed else errors.DONE


def _count(value: Any) -> int:
    """A number, or the sandboxes themselves."""
    return len(value) if isinstance(value, list | dict) else int(value or 0)


def undrain(context: Context) -> int:
    """Take sandboxes again. None that is paused is resumed by that, which is said."""
    answer = context.poold.call("POST", "/admin/undrain")
    if context.out.as_json:
        context.out.json(answer)
        return errors.DONE
    context.out.line("poold takes sandboxes again")
    paused = _count(context.poold.get("/admin/status")["sandboxes"].get(State.PAUSED))
    if paused:
        context.out.line(f"{paused} {'is' if paused == 1 else 'are'} paused; resume all of them with: {RESUME_ALL}")
    return errors.DONE
