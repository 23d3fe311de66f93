"""`pooldctl drain` and `undrain`: empty the host, for maintenance, and open it again."""

from typing import Any

from contract.states import State
from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.errors import CtlError, Unreachable

RESUME_ALL = "pooldctl sandboxes ls -q --state paused | xargs -r pooldctl sandboxes resume"


def drain(context: Context) -> int:
    """Tell of each sandbox as it is done. Fails if one could not be; interrupted, poold goes on by itself."""
    out = context.out
    body = {"mode": "destroy" if context.asked.destroy else "pause"}
    with context.poold.stream("POST", "/admin/drain", body) as events:
        for event in events:
            if out.as_json:
                out.json_line({"event": event.kind, **event.data})
            elif event.kind == "progress":
                out.line(f"{event.data.get('sandbox') or '-'} done, {event.data['left']} left")
            if event.kind == "error":
                raise CtlError(f"{event.data.get('code')}: {event.data.get('message')}")
            if event.kind == "drained":
                return _ended(context, event.data)
    raise Unreachable("poold went away before the host was drained", hint="see pooldctl status, then drain it again")


def _ended(context: Context, counts: dict[str, Any]) -> int:
    paused, destroyed, failed = (_count(counts.get(name)) for name in ("paused", "destroyed", "failed"))
    if not context.out.as_json:
        context.out.line(f"drained: {paused} paused, {destroyed} destroyed, {failed} failed")
        if paused:
            context.out.line("what is paused stays so, also after pooldctl undrain, until it is resumed")
    return errors.FAILED if failed else errors.DONE


def _count(value: Any) -> int:
    """A number, or the sandboxes themselves."""
    return len(value) if isinstance(value, list) else int(value or 0)


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
