"""Work that goes on when its client has left: it is finished, or undone, but never left half done."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger("gateway.background")

T = TypeVar("T")


class Background:
    """The parent of such work. `close` waits for it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it hears of it; if nobody does, it is not worth a warning

    async def close(self, limit_s: float) -> None:
        """Wait for all of it, then give up what takes longer."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)
        left = set(self._tasks)
        for task in left:
            task.cancel()
        if left:
            log.warning("work was given up", extra={"tasks": len(left)})
            await asyncio.wait(left)
