"""The output of one process: its last bytes, numbered from the first byte it ever wrote, and who reads them.

Readers hold a position, not a buffer. Nothing is lost to them because `is_full` asks the process to wait before bytes
that an attached reader still needs would be dropped; so a process costs at most `KEPT` bytes, however many read it.
"""

from collections import deque
from collections.abc import Callable

from warren_guest.bell import Bell
from warren_guest.errors import RefusedError
from warren_guest.frames import PAYLOAD_LIMIT

KEPT = 256 * 1024
# A process that writes single bytes to both streams in turn must not cost an object per byte.
_CHUNKS_KEPT = 4096
_MERGED = 4096
# Chunks that may be added between two looks at `is_full`: one read of each stream.
_CHUNKS_MARGIN = 8

Chunk = tuple[int, bytes]


class Output:
    """A numbered, bounded log of chunks `(kind, bytes)`. Lives on the loop.

    The bell rings when there is something for readers; `on_room` is called when one of them moved on or left.
    """

    def __init__(self) -> None:
        self.total = 0
        self.bell = Bell()
        self.on_room: Callable[[], None] = lambda: None
        self._chunks: deque[tuple[int, int, bytes]] = deque()
        self._kept = 0
        self._readers: set[Reader] = set()
        self._final: bytes | None = None

    @property
    def oldest(self) -> int:
        """The number of the first byte that is still kept."""
        return self.total - self._kept

    @property
    def is_full(self) -> bool:
        """Whether another read might push out what an attached reader has not taken."""
        if not self._readers:
            return False
        slowest = min(reader.position for reader in self._readers)
        # A reader may stand inside a chunk that was added to since, and a chunk is dropped whole.
        if self.total - slowest > KEPT - PAYLOAD_LIMIT - 2 * _MERGED:
            return True
        crowded = len(self._chunks) > _CHUNKS_KEPT - _CHUNKS_MARGIN
        return crowded and slowest < self._chunks[_CHUNKS_MARGIN][0]

    def append(self, kind: int, data: bytes) -> None:
        if self._chunks and len(data) < _MERGED:
            _, last_kind, last = self._chunks[-1]
            if last_kind == kind and len(last) < _MERGED:
                self._chunks.pop()
                self._kept -= len(last)
                self.total -= len(last)
                data = last + data
        self._chunks.append((self.total, kind, data))
        self.total += len(data)
        self._kept += len(data)
        while self._kept > KEPT or len(self._chunks) > _CHUNKS_KEPT:
            self._kept -= len(self._chunks.popleft()[2])
        self.bell.ring()

    def attach(self, after: int | None = None) -> "Reader":
        """Read from byte `after` or the first one that is kept; without it, from now on."""
        if after is not None and after > self.total:
            raise RefusedError("bad_field", f"after: {after} is beyond the {self.total} bytes so far", field="after")
        position = self.total if after is None else max(after, self.oldest)
        reader = Reader(self, position, self._final)
        self._readers.add(reader)
        return reader

    def detach(self, reader: "Reader") -> None:
        self._readers.discard(reader)
        self.on_room()

    def finish(self, final: bytes) -> None:
        """End every stream with the frame `final` after all output, those of later readers too."""
        self._final = final
        self.finish_attached(final)

    def finish_attached(self, final: bytes) -> None:
        """End the streams of those who read now, after what was written until now."""
        for reader in self._readers:
            reader.finish(self.total, final)
        self.bell.ring()

    def between(self, start: int, end: int) -> list[Chunk]:
        """The chunks that hold bytes `start` to `end`, cut to them."""
        found: list[Chunk] = []
        for offset, kind, data in reversed(self._chunks):
            if offset + len(data) <= start:
                break
            if offset < end:
                cut = (
                    data
                    if offset >= start and offset + len(data) <= end
                    else data[max(start - offset, 0) : end - offset]
                )
                found.append((kind, cut))
        found.reverse()
        return found


class Reader:
    """One who reads an output, at `position`. Detach it, or the process waits for it for ever."""

    def __init__(self, output: Output, position: int, final: bytes | None) -> None:
        self.position = position
        self.final: bytes | None = final
        self._output = output
        self._until: int | None = None if final is None else output.total

    def finish(self, until: int, final: bytes) -> None:
        if self.final is None:
            self.final, self._until = final, until

    def take(self) -> list[Chunk]:
        """Everything up to now. Empty when there is nothing, for ever so once `final` is set."""
        end = self._output.total if self._until is None else self._until
        if self.position >= end:
            return []
        chunks = self._output.between(self.position, end)
        self.position = end
        self._output.on_room()
        return chunks

    async def wait(self, limit_s: float) -> bool:
        return await self._output.bell.wait(limit_s)

    def detach(self) -> None:
        self._output.detach(self)
