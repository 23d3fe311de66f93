"""Who gets the next room of this host: the oldest task that waits, and nobody before it."""

import asyncio
import bisect
import contextlib
from collections.abc import AsyncIterator

AGAIN_S = 3.0  # room may come back without anybody saying so: a host that was short of memory is well again

Key = tuple[int, str]  # when it was created, and its id


class Queue:
    """The tasks that wait, oldest first. Lives on the loop."""

    def __init__(self) -> None:
        self._waiting: list[Key] = []
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @contextlib.asynccontextmanager
    async def turn(self, key: Key) -> AsyncIterator["Turn"]:
        """Wait until everybody older has gone. During the block this one is the first, until `Turn.over`."""
        bisect.insort(self._waiting, key)
        turn = Turn(self, key)
        try:
            while self._waiting[0] != key:
                await self._wait()
            yield turn
        finally:
            turn.over()

    def freed(self) -> None:
        """Room was given back: whoever is first looks again."""
        self._news.set()
        self._news = asyncio.Event()

    async def _wait(self, limit_s: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._news.wait()

    async def wait_for_room(self) -> None:
        await self._wait(AGAIN_S)

    def leave(self, key: Key) -> None:
        if key in self._waiting:
            self._waiting.remove(key)
            self.freed()


class Turn:
    """To be the first."""

    def __init__(self, queue: Queue, key: Key) -> None:
        self._queue = queue
        self._key = key

    async def wait_for_room(self) -> None:
        """Return when there may be room. Somebody older may have come meanwhile: it goes first."""
        await self._queue.wait_for_room()

    @property
    def is_first(self) -> bool:
        return bool(self._queue._waiting) and self._queue._waiting[0] == self._key

    def over(self) -> None:
        """This one has its room, or wants none any more. May be called twice."""
        self._queue.leave(self._key)
