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
        self._is_stopping = False
        self._under_way: set[asyncio.Task[Any]] = set()

    def stop(self) -> None:
        """End what is under way, and what is begun from now on: the next daemon may begin again."""
        self._is_stopping = True
        for task in self._under_way:
            task.cancel()

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns. A caller that leaves does not end it; a host that stops does."""
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        if self._is_stopping:
            task.cancel()
        try:
            return await finish(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._is_stopping:
                raise CapacityError(STOPPING) from None
            raise
        finally:
            self._under_way.discard(task)
