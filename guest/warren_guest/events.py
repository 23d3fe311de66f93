"""What happened in the machine: numbered events, the last ones kept, told as server-sent events.

Readers hold a number, not a buffer; one that falls behind what is kept is told so with `gap`.
"""

import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping

from warren_guest.bell import Bell
from warren_guest.wire import to_json

CONTENT_TYPE = "text/event-stream"
KEPT = 2000
COMMENT_S = 15.0
COMMENT = b":\n\n"


def sse(kind: str, data: Mapping[str, object], number: int | None = None) -> bytes:
    """One server-sent event. JSON has no line breaks, so `data` is one line."""
    name = b"" if number is None else b"id: %d\n" % number
    return b"%bevent: %b\ndata: %b\n\n" % (name, kind.encode(), to_json(data))


class Events:
    """Numbered from 1, without gaps. Lives on the loop."""

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque(maxlen=KEPT)
        self._bell = Bell()
        self.last = 0

    @property
    def first(self) -> int:
        """The oldest number that is kept; the next one if none is."""
        return self.last - len(self._kept) + 1

    def emit(self, kind: str, data: Mapping[str, object]) -> None:
        self.last += 1
        self._kept.append(sse(kind, {"at_ms": time.time_ns() // 1_000_000, **data}, self.last))
        self._bell.ring()

    def go_on_after(self, number: int) -> None:
        """This machine goes on in another's place, which told events up to `number`. Of its own so far none is told."""
        self._kept.clear()
        self.last = max(self.last, number)
        self._bell.ring()

    async def tell(self, after: int | None) -> AsyncGenerator[bytes, None]:
        """Events after number `after`, for ever; without it, from the next one.

        A number that is not of this machine's past (another machine's, perhaps) is a gap, too.
        """
        position = self.last if after is None else after
        # A first piece at once, so that the reader knows from when on it misses nothing.
        yield COMMENT
        while True:
            if position > self.last or position + 1 < self.first:
                yield sse("gap", {"at_ms": time.time_ns() // 1_000_000, "first": self.first})
                position = self.first - 1
            elif position < self.last:
                start = position + 1 - self.first
                missed = [self._kept[i] for i in range(start, len(self._kept))]
                position = self.last
                yield b"".join(missed)
            elif not await self._bell.wait(COMMENT_S):
                yield COMMENT
