"""What every adapter promises, and what it is given."""

import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from warren_guest.agents.acts import Act, Signal
from warren_guest.agents.rules import Rules
from warren_guest.agents.values import Object, text

# What an agent is told that was at work when its machine was lost, and has its session still.
GO_ON = (
    "The machine that you worked in was lost, and you are in a new one. Your files are as they were a while ago: "
    "what you did last may be undone. Look at how far the work is, and go on with it."
)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the agent is to do. `env` is what the caller gives it, not all that it is started with.

    `continues`: it was at work on this before, in a machine that is no more.
    """

    prompt: str
    model: str | None = None
    session: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    continues: bool = False

    @property
    def words(self) -> str:
        """What is said to it: one that has its session knows what it is to do."""
        return GO_ON if self.continues and self.session is not None else self.prompt


@dataclass(frozen=True, slots=True)
class Command:
    """How the CLI is started. `names`: the first of these programs that there is. `stdin`: what it is told first."""

    names: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    keeps_stdin: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person said: `approve`, `reject` or `answer`, and perhaps words."""

    kind: str
    text: str = ""


class Adapter(Protocol):
    """One run of one CLI. Pure: no method waits, does anything, or raises but for `RefusedError` of the first two."""

    @property
    def session_folders(self) -> tuple[str, ...]:
        """What of a home it needs to be resumed."""
        ...

    @property
    def totals_survive(self) -> bool:
        """Whether a session that is resumed after its CLI was killed goes on with the totals that it told before."""
        ...

    def command(self) -> Command:
        """Raises `bad_field` for what this CLI cannot be given."""
        ...

    def instruct(self, text: str) -> Iterable[Act]:
        """Say something more to it while it works. Raises `not_possible`."""
        ...

    def read(self, line: Object) -> Iterable[Act] | None:
        """What a line that the agent printed means; None if it is not one of its words."""
        ...

    def answer(self, key: str, answer: Answer) -> Iterable[Act]:
        """Give it the answer to an `Ask`."""
        ...

    def interrupt(self) -> Iterable[Act]:
        """Ask it to end by itself."""
        ...

    def quiet(self) -> Iterable[Act]:
        """It has said nothing for a while."""
        ...


Reader = Callable[[Object], Iterable[Act] | None]


def read_by_type(readers: Mapping[str, Reader], line: Object) -> Iterable[Act] | None:
    """Read a line with the reader of its type; None if there is none."""
    reader = readers.get(text(line.get("type")))
    return None if reader is None else reader(line)


def silent(_line: Object) -> Iterable[Act]:
    """Reads what means nothing to us."""
    return ()


class OneShot:
    """What CLIs have in common that are told all at their start: they cannot be asked anything later."""

    def answer(self, key: str, answer: Answer) -> Iterable[Act]:
        return ()

    def interrupt(self) -> Iterable[Act]:
        return (Signal(signal.SIGINT),)

    def quiet(self) -> Iterable[Act]:
        return ()
