"""Which sandbox is meant by what was typed."""

from contract.ids import SANDBOX
from contract.states import State
from poold.ctl.client import Client
from poold.ctl.errors import NoSuchThing, UsageError
from warren_console.text import clean

KIND = "sb-"
MIN_CHARS = 4  # after the kind; fewer are not meant to name one


def resolve(poold: Client, typed: str) -> str:
    """The id that starts with `typed`. A whole one is taken as it is; stopped sandboxes are looked at last."""
    if SANDBOX.fullmatch(typed):
        return typed
    if not typed.startswith(KIND) or len(typed) < len(KIND) + MIN_CHARS:
        raise UsageError(f"{typed!r} is not a sandbox's id: 'sb-' and at least {MIN_CHARS} characters of the rest")
    for state in (None, State.STOPPED):
        found = [row["id"] for row in poold.pages("/v1/sandboxes", "sandboxes", state=state)]
        matching = sorted(name for name in found if name.startswith(typed))
        if len(matching) > 1:
            raise UsageError(f"{typed!r} could be any of {clean(', '.join(matching))}")
        if matching:
            return str(matching[0])
    raise NoSuchThing(f"there is no sandbox {typed!r}", hint="see: pooldctl sandboxes ls --all")
