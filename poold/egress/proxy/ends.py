"""One side of a connection, the guest's or the world's.

Until it is poured into another end, what it receives is kept (a little of it) for whoever asks. From then on bytes go
straight over, and whoever is slow slows the other one down.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable

KEPT_BYTES = 64 * 1024  # then it is not read from until somebody takes some
# How much one read may bring. Much costs less of the processor; little is for where there are many.
MUCH_BYTES = 256 * 1024
LITTLE_BYTES = 16 * 1024
LAST_WORDS_S = 2.0
_RESET = struct.pack("ii", 1, 0)


class Gone(Exception):
    """The other side has left, or was made to."""


class End(asyncio.Protocol):
    """Never keeps more than `KEPT_BYTES` and what one read brings. After `abort` not one more byte passes."""

    def __init__(self) -> None:
        self.data = bytearray()  # received, and not taken yet
        self.has_ended = False  # the other side sends no more
        self.is_lost = False
        self.has_moved = True  # since somebody last set it to False
        self.is_full = False  # what is written waits for the other side to read
        self._transport: asyncio.Transport | None = None
        self._has_finished = False
        self._sink: End | None = None
        self._source: End | None = None
        self._tally: Callable[[int], None] = _nothing
        self._readable: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] | None = None

    # What the loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 — for the type checker
        self._transport = transport
        self.read_at_once(LITTLE_BYTES)

    def data_received(self, data: bytes) -> None:
        self.has_moved = True
        if self._sink is not None:
            self._tally(len(data))
            self._sink.write(data)
            return
        self.data += data
        if len(self.data) >= KEPT_BYTES:
            self.pause()
        _wake(self._readable)

    def eof_received(self) -> bool:
        self.has_ended = True
        _wake(self._readable)
        if self._sink is not None:
            self._sink.finish()
            self._close_when_done()
        return True  # the way back stays open

    def pause_writing(self) -> None:
        self.is_full = True
        if self._source is not None:
            self._source.pause()

    def resume_writing(self) -> None:
        self.is_full = False
        self.has_moved = True
        _wake(self._writable)
        if self._source is not None:
            self._source.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        for waiting in (self._readable, self._writable, self._closed):
            _wake(waiting)
        if not (self.has_ended and self._has_finished):
            for peer in (self._sink, self._source):
                if peer is not None:
                    peer.abort()
        self._sink = self._source = None

    # What others ask for

    async def more(self) -> bool:
        """Wait for more bytes in `data`. False: there will be none. Raises `Gone`."""
        before = len(self.data)
        while len(self.data) == before:
            if self.is_lost:
                raise Gone
            if self.has_ended:
                return False
            self.resume()
            self._readable = asyncio.get_running_loop().create_future()
            await self._readable
        return True

    def read_at_once(self, count: int) -> None:
        """Let one read bring so much. asyncio has no better word for it; a test sees to it that it listens."""
        self._transport.max_size = count  # type: ignore[union-attr]

    def take(self, count: int) -> bytes:
        """Up to `count` of the bytes that are there."""
        if count >= len(self.data):
            taken = bytes(self.data)
            self.data.clear()
        else:
            taken = bytes(self.data[:count])
            del self.data[:count]
        return taken

    async def send(self, data: bytes) -> None:
        """Write, and wait until there is room for more. Raises `Gone`."""
        self.write(data)
        await self.has_room()

    async def has_room(self) -> None:
        while self.is_full and not self.is_lost:
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable
        if self.is_lost:
            raise Gone

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._has_finished and not self._transport.is_closing():
            self._transport.write(data)

    def finish(self) -> None:
        """Say that no more will be written."""
        if self._has_finished or self.is_lost or self._transport is None:
            return
        self._has_finished = True
        with contextlib.suppress(OSError):  # it may be gone without our having been told
            self._transport.write_eof()
        if self._source is not None:
            self._close_when_done()

    def pour(self, sink: "End", tally: Callable[[int], None]) -> None:
        """From now on all that comes goes to `sink`, beginning with what is there. `tally` is told how much."""
        if self.is_lost or sink.is_lost:
            self.abort()
            sink.abort()
            return
        self._sink, sink._source, self._tally = sink, self, tally
        if self.data:
            kept = self.take(len(self.data))
            tally(len(kept))
            sink.write(kept)
        if self.has_ended:
            sink.finish()
            self._close_when_done()
        elif not sink.is_full:
            self.resume()

    def keep(self) -> None:
        """No longer go straight over: what comes is kept again for whoever asks."""
        if self._sink is not None:
            self._sink._source = None
            self._sink = None

    async def closed(self) -> None:
        """Wait until nothing is left of it."""
        while not self.is_lost and self._transport is not None:
            if self._closed is None or self._closed.done():
                self._closed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._closed)  # others may wait for it, too

    async def leave(self, last_words: bytes) -> None:
        """Say something, and close so that it is heard: what still comes is read, for a while, and thrown away."""
        self.write(last_words)
        self.finish()
        with contextlib.suppress(Gone, TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                self.data.clear()
                while await self.more():
                    self.data.clear()
        self.close()

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def part(self) -> None:
        """Close in a way that leaves nothing behind: at once if somebody does not read what was written."""
        if self._transport is not None and self._transport.get_write_buffer_size():
            self.abort()
        self.close()

    def close(self) -> None:
        """Close when all that was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, with a reset, so that nobody takes it for a good end."""
        if self._transport is None or self.is_lost:
            return
        sock: socket.socket | None = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def _close_when_done(self) -> None:
        if self.has_ended and self._has_finished:
            self.close()


def _wake(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _nothing(_count: int) -> None:
    pass
