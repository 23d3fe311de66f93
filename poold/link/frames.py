"""A guest's frame stream: what a process said and how it ended. See docs/GUEST.md."""

from collections.abc import AsyncIterator
from enum import IntEnum

from poold.errors import GuestError

HEAD = 5  # one byte kind, four bytes length
MAX_FRAME = 65_536


class Kind(IntEnum):
    STDOUT = 1
    STDERR = 2
    PTY = 3
    START = 16
    END = 17
    KEEPALIVE = 18
    DEADLINE = 19


KNOWN = frozenset(Kind)
LAST = frozenset({Kind.END, Kind.DEADLINE})


async def read_frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[Kind, bytes]]:
    """The frames in `chunks`, up to and with the last one. Kinds that we do not know are skipped.

    Raises `GuestError` if a frame is too long or the stream breaks off: an end is never invented.
    """
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        start = 0
        while (frame := _frame(buffer, start)) is not None:
            kind, payload, start = frame
            if kind in KNOWN:
                yield Kind(kind), payload
                if kind in LAST:
                    return
        del buffer[:start]
    raise GuestError("the guest's stream broke off")


def _frame(buffer: bytearray, start: int) -> tuple[int, bytes, int] | None:
    """The frame at `start` and where the next one begins, if it is all there."""
    if len(buffer) < start + HEAD:
        return None
    length = int.from_bytes(buffer[start + 1 : start + HEAD], "big")
    if length > MAX_FRAME:
        raise GuestError(f"the guest sent a frame of {length} bytes")
    end = start + HEAD + length
    if len(buffer) < end:
        return None
    return buffer[start], bytes(memoryview(buffer)[start + HEAD : end]), end
