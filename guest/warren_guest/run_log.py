"""What happens in runs: events numbered from 1 without gaps over all runs of a machine, kept until they were read.

Nothing is forgotten before it is acknowledged. When too much is kept, whoever tells waits (`has_room`), and so does the
agent: its output is not read on. A stream ends after a while, so that its reader comes again and acknowledges.
"""

import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping

from warren_guest.bell import Bell
from warren_guest.events import COMMENT, COMMENT_S, sse

LIMIT = 4 << 20
# What one stream tells before it ends.
STREAM_BYTES = 1 << 20
_PIECE = 256 << 10


class RunLog:
    """Lives on the loop."""

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque()
        self._size = 0
        self._told = Bell()
        self._acknowledged = Bell()
        self.last = 0

    def go_on(self, number: int) -> None:
        """The first event has the number after this one: those before it were told in another machine."""
        if not self.last:
            self.last = number

    @property
    def first(self) -> int:
        """The oldest number that is kept; the next one if none is."""
        return self.last - len(self._kept) + 1

    @property
    def has_room(self) -> bool:
        return self._size < LIMIT

    @property
    def is_overfull(self) -> bool:
        """Whether so much is kept that no more can be, even of an agent that is not waited for."""
        return self._size >= 2 * LIMIT

    def emit(self, kind: str, data: Mapping[str, object]) -> None:
        self.last += 1
        event = sse(kind, {"at_ms": time.time_ns() // 1_000_000, **data}, self.last)
        self._kept.append(event)
        self._size += len(event)
        self._told.ring()

    async def acknowledged(self) -> None:
        """Wait until something was forgotten, or somebody woke those who wait."""
        await self._acknowledged.wait()

    def wake(self) -> None:
        self._acknowledged.ring()

    def acknowledge(self, number: int) -> None:
        """Forget everything up to `number`. One that is not of this machine's past acknowledges nothing."""
        if number > self.last:
            return
        while self._kept and self.first <= number:
            self._size -= len(self._kept.popleft())
        self._acknowledged.ring()

    async def tell(self, after: int) -> AsyncGenerator[bytes, None]:
        """Events after number `after`, about `STREAM_BYTES` of them. One that is not of the past, or gone, is a gap."""
        position, left = after, STREAM_BYTES
        yield COMMENT
        while left > 0:
            if position > self.last or position + 1 < self.first:
                yield sse("gap", {"at_ms": time.time_ns() // 1_000_000, "first": self.first})
                position = self.first - 1
            elif position < self.last:
                piece, position = self._after(position)
                left -= len(piece)
                yield piece
            elif not await self._told.wait(COMMENT_S):
                yield COMMENT

    def _after(self, position: int) -> tuple[bytes, int]:
        """Some of the events after `position`, and the number of the last one."""
        found: list[bytes] = []
        size, at = 0, position + 1 - self.first
        while at < len(self._kept) and size < _PIECE:
            found.append(self._kept[at])
            size += len(self._kept[at])
            at += 1
        return b"".join(found), position + len(found)
