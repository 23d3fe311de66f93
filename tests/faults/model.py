"""What clients know of a sandbox: the states that it may be in, and the marks that it must have. No I/O.

An answered request is known to have happened. One that was cut off may have happened or not. Of requests that were
under way at the same time nobody knows the order: the sandbox is in the state that one of their answers told.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from contract.errors import WrongState
from contract.states import FINAL, Event, State, step


class Change(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    DESTROY = "destroy"


EVENTS = {
    Change.PAUSE: (Event.PAUSE,),
    Change.RESUME: (Event.RESUME, Event.READY),
    Change.DESTROY: (Event.STOP,),
}


def after(change: Change, state: State) -> State:
    """The state that `change` leads to from `state`. One that the table of states does not allow changes nothing."""
    try:
        for event in EVENTS[change]:
            state = step(state, event)
    except WrongState:
        pass
    return state


def reachable(states: Iterable[State], changes: Iterable[Change]) -> frozenset[State]:
    """Where any of `changes`, in any order and each as often as you like, lead from any of `states`."""
    found = set(states)
    changes = set(changes)
    while more := {after(change, state) for change in changes for state in found} - found:
        found |= more
    return frozenset(found)


@dataclass
class Known:
    """One sandbox, as its clients know it. They hold a lock: nothing here is safe to use from many threads."""

    id: str
    states: frozenset[State] = frozenset({State.RUNNING})  # when nothing was under way for the last time
    marks_sent: set[str] = field(default_factory=set)
    marks: set[str] = field(default_factory=set)  # those that are known to be written
    boot: str | None = None  # the id of its boot, once it was told: it never changes
    history: list[str] = field(default_factory=list)
    begun: int = 0  # how many changes were ever asked for
    _under_way: list[Change] = field(default_factory=list)
    _cut_off: list[Change] = field(default_factory=list)
    _told: set[State] = field(default_factory=set)

    @property
    def is_certain(self) -> bool:
        """Whether its state is known and nothing is under way that could change it."""
        return not self._under_way and not self._cut_off and len(self.states) == 1

    def begin(self, change: Change) -> None:
        self.begun += 1
        self._under_way.append(change)

    def answered(self, change: Change, told: State | None) -> None:
        """The request for `change` was answered: with the sandbox's new state, or with a refusal."""
        self._under_way.remove(change)
        if told is not None:
            self._told.add(told)
        if not self._under_way:
            self.states = self._quiet()
            self._told.clear()

    def cut_off(self, change: Change) -> None:
        """Nobody will answer the request for `change` any more."""
        self._under_way.remove(change)
        self._cut_off.append(change)

    def allowed(self) -> frozenset[State]:
        """The states that it may be in now."""
        return reachable(self._quiet(), [*self._under_way, *self._cut_off])

    def seen(self, state: State) -> None:
        """It was looked at when nothing was under way: `state` is what it is in."""
        self.states = frozenset({state})
        self._under_way.clear()
        self._cut_off.clear()
        self._told.clear()

    def _quiet(self) -> frozenset[State]:
        final = self._told & FINAL
        return frozenset(final or self._told or self.states)
