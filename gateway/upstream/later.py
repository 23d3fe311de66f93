"""Calls what is still there after a moment. Cheaper than a timer each for many things that are mostly over by then."""

import asyncio
from collections.abc import Generator
from typing import Any, Protocol

MOMENT_S = 0.05


class AtOnce:
    """What need not be waited for, where something must be: cheaper than a coroutine that does nothing."""

    def __await__(self) -> Generator[Any, None, None]:
        return iter(())  # type: ignore[return-value]  # nothing is ever sent into it


AT_ONCE = AtOnce()


class Waiting(Protocol):
    def begin(self) -> None:
        """A moment has passed, and nobody has taken it out."""


class Later:
    """What is added is begun after one to two moments, unless it is discarded before. Bound to one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._young: set[Waiting] = set()
        self._old: set[Waiting] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, waiting: Waiting) -> None:
        self._young.add(waiting)
        if self._timer is None:
            self._timer = self.loop.call_later(MOMENT_S, self._tick)

    def discard(self, waiting: Waiting) -> None:
        self._young.discard(waiting)
        self._old.discard(waiting)

    def _tick(self) -> None:
        due, self._old, self._young = self._old, self._young, set()
        self._timer = self.loop.call_later(MOMENT_S, self._tick) if self._old else None
        for waiting in due:
            waiting.begin()
