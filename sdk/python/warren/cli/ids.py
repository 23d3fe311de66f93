"""Which sandbox is meant by what was typed: an id, the first characters of one, or a name."""

from collections.abc import Iterable, Iterator

from warren.calls import SANDBOX
from warren.cli.errors import Failure, NoSuchThing, UsageError
from warren.client import Sandbox, Warren
from warren_console.text import clean

KIND = "sb-"
MIN_CHARS = 3  # of an id, after its kind; fewer are not meant to name one
NAME = "name"  # the metadata that `create --name` gives


def find(warren: Warren, typed: str) -> Sandbox:
    """The sandbox that is meant. Names come before first characters, those that stopped come last."""
    if SANDBOX.fullmatch(typed):
        return warren.get(typed)
    for state in (None, "stopped"):
        found = _by_name(warren, typed, state) or _by_prefix(warren, typed, state)
        if found is not None:
            return found
    raise NoSuchThing(f"there is no sandbox {typed!r}", hint="see `warren ls --all`")


def refuse_taken(warren: Warren, name: str) -> None:
    """A second sandbox with this name would make it stand for neither. One that stopped does not count."""
    for sandbox in _named(warren, name, None):
        hint = "choose another name, or end that one first: warren rm " + sandbox.id
        raise Failure(f"{sandbox.id} has the name {name!r} already, and is {sandbox.state}", hint=hint)


def _named(warren: Warren, name: str, state: str | None) -> Iterator[Sandbox]:
    """Looked at here too: what is meant for one sandbox must not reach another, whoever answers."""
    named = warren.sandboxes(state, {NAME: name})
    return (sandbox for sandbox in named if sandbox.info.metadata.get(NAME) == name)


def _by_name(warren: Warren, typed: str, state: str | None) -> Sandbox | None:
    return _one(typed, _named(warren, typed, state))


def _by_prefix(warren: Warren, typed: str, state: str | None) -> Sandbox | None:
    begun = KIND + typed.removeprefix(KIND)
    if len(begun) < len(KIND) + MIN_CHARS:
        return None
    return _one(typed, (sandbox for sandbox in warren.sandboxes(state) if sandbox.id.startswith(begun)))


def _one(typed: str, sandboxes: Iterable[Sandbox]) -> Sandbox | None:
    found = {sandbox.id: sandbox for sandbox in sandboxes}
    if len(found) > 1:
        some = ", ".join(sorted(found)[:5])
        raise UsageError(f"{typed!r} could be any of {clean(some)}" + (" …" if len(found) > 5 else ""))
    return next(iter(found.values()), None)
