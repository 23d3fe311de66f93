"""Which sandbox, task or workspace is meant by what was typed: an id, the first characters of one, or a name."""

import re
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from warren.calls import SANDBOX
from warren.cli.errors import Failure, NoSuchThing, UsageError
from warren.client import Sandbox, Warren
from warren.errors import NotFound
from warren.tasks import Task
from warren.workspaces import Workspace
from warren_console.text import clean

KIND, TASK_KIND = "sb-", "tk-"
TASK = re.compile(r"tk-[a-z2-7]{16}")
MIN_CHARS = 3  # of an id, after its kind; fewer are not meant to name one
NAME = "name"  # the metadata that `create --name` gives


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


Thing = TypeVar("Thing", bound=_HasId)


def find(warren: Warren, typed: str) -> Sandbox:
    """The sandbox that is meant. Names come before first characters, those that stopped come last."""
    if SANDBOX.fullmatch(typed):
        return warren.get(typed)
    for state in (None, "stopped"):
        found = _by_name(warren, typed, state) or _by_prefix(warren, typed, state)
        if found is not None:
            return found
    raise NoSuchThing(f"there is no sandbox {typed!r}", hint="see `warren ls --all`")


def find_task(warren: Warren, typed: str) -> Task:
    if TASK.fullmatch(typed):
        return warren.tasks.get(typed)
    begun = _begun(typed, TASK_KIND)
    found = None if begun is None else _one(typed, (task for task in warren.tasks.list() if task.id.startswith(begun)))
    if found is None:
        raise NoSuchThing(f"there is no task {typed!r}", hint="see `warren tasks ls`")
    return found


def find_workspace(warren: Warren, name: str) -> Workspace:
    try:
        return warren.workspaces.get(name)
    except NotFound:
        raise NoSuchThing(f"there is no workspace {name!r}", hint="see `warren workspaces ls`") from None


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
    begun = _begun(typed, KIND)
    return (
        None
        if begun is None
        else _one(typed, (sandbox for sandbox in warren.sandboxes(state) if sandbox.id.startswith(begun)))
    )


def _begun(typed: str, kind: str) -> str | None:
    """The first characters of an id, if there are enough of them."""
    begun = kind + typed.removeprefix(kind)
    return begun if len(begun) >= len(kind) + MIN_CHARS else None


def _one(typed: str, things: Iterable[Thing]) -> Thing | None:
    found = {thing.id: thing for thing in things}
    if len(found) > 1:
        some = ", ".join(sorted(found)[:5])
        raise UsageError(f"{typed!r} could be any of {clean(some)}" + (" …" if len(found) > 5 else ""))
    return next(iter(found.values()), None)
