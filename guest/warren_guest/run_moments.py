"""A task in two machines: the moment that is kept of it in the one, and what the other is told of its past."""

from collections.abc import Callable
from dataclasses import dataclass, field

from warren_guest.agents.usage import Usage


@dataclass(frozen=True, slots=True)
class Past:
    """What became of a task in machines that are no more: its last event and question, what it used, and how much of
    that its session remembers.
    """

    events: int
    questions: int
    used: Usage
    covered: Usage


@dataclass(frozen=True, slots=True)
class Held:
    """A run that stands still, and how far it is. `release` lets it go on, and may be called twice."""

    release: Callable[[], None]
    run: int | None = None
    events: int = 0
    session: str | None = None
    used: Usage = field(default_factory=Usage)
    session_folders: tuple[str, ...] = ()
