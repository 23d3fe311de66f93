"""Work that goes on when whoever asked for it leaves, and ends when the host is being stopped."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from contract.errors import CapacityError
from poold.lifetimes import finish
from poold.sandboxes.why import STOPPING

T = TypeVar("T")


class Stoppable:
    """What is under way."""

    def __init__(self) -> None:
        self._why_not: str | None = None  # nothing is begun
        self._under_way: set[asyncio.Task[Any]] = set()

    def stop(self) -> None:
        """End what is under way, and what is begun from now on: the next daemon may begin again."""
        self.give_up(STOPPING)

    def give_up(self, why: str | None) -> None:
        """End what is under way, and begin nothing, for `why`. With None: begin again."""
        self._why_not = why
        for task in self._under_way if why is not None else ():
            task.cancel()

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns. A caller that leaves does not end it; a host that stops does."""
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        if self._why_not is not None:
            task.cancel()
        try:
            return await finish(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._why_not is not None:
                raise CapacityError(self._why_not) from None
            raise
        finally:
            self._under_way.discard(task)
