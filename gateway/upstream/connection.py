"""One HTTP/1.1 connection to a host: a request goes out, an answer comes in, both streamed with flow control.

The loop calls the methods of the protocol, the parser those that begin with `on_`. One task reads an answer, and
one may be sending a body meanwhile. Errors are remembered here and raised where somebody waits: what came before a
break is read first.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

from gateway.errors import HostBroken, HostUnreachable
from gateway.upstream.parts import MAX_HEAD_BYTES, MAX_HEADERS

HIGH_WATER = 1 << 20  # of an answer's body waiting for its reader; then the host has to wait
LOW_WATER = 256 << 10
WRITE_HIGH_WATER = 512 << 10  # of a request's body waiting for the host; then the client has to
NO_BODY = frozenset({204, 304})
JOINED_BYTES = 256 << 10  # pieces of a body that wait together are taken as one up to this size


class Connection(asyncio.Protocol):
    """The protocol of one connection. One exchange at a time; `is_reusable` says whether another may follow."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None  # of the one task that reads
        self.told: Callable[[], None] | None = None  # in its place: called once, when there is news
        self._room: asyncio.Future[None] | None = None  # done when the host takes bytes again
        self._go: asyncio.Future[None] | None = None  # done when the host says that it wants the body
        self._parser: httptools.HttpResponseParser | None = None
        self._chunks: deque[bytes] = deque()
        self._waiting = 0  # bytes in _chunks
        self._paused = False
        self._error: BaseException | None = None
        self._in_exchange = False
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self.used = 0  # exchanges so far
        self.idle_since = 0.0
        self._reset(is_head=False)

    def _reset(self, *, is_head: bool) -> None:
        self._is_head = is_head
        self.status = 0  # until the answer's head is there
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        self._overhead = 0  # bytes since the host said something that we can use
        self._length: int | None = None  # of the body, where the head said so
        self._until_close = False
        self._interim = False
        self._raw_left = 0  # bytes of a body of known length that need no parsing
        self._keep_alive = False

    # What a caller does.

    def begin(self, data: bytes, method: str) -> None:
        """Start an exchange: `data` is the request's head, and its body if that is at hand."""
        if self._error is not None:
            raise self._error
        self._reset(is_head=method == "HEAD")
        self._in_exchange = True
        self.used += 1
        cast(asyncio.Transport, self._transport).write(data)

    async def write(self, *pieces: bytes) -> None:
        """Send a part of the request's body; waits while the host does not take it."""
        if self._room is not None:
            await self._room
        if self._error is not None:
            raise self._error
        cast(asyncio.Transport, self._transport).writelines(pieces)

    async def until_wanted(self, limit_s: float) -> None:
        """Wait until the host says that it wants the body (100), or answers; at most `limit_s`: it need say neither."""
        self._go = self.loop.create_future()
        timer = self.loop.call_later(limit_s, _done, self._go)
        try:
            await self._go
        finally:
            timer.cancel()
            self._go = None

    def news(self) -> asyncio.Future[None]:
        """Done when something came. Raises what ended the connection."""
        if self._error is not None:
            raise self._error
        self._waiter = self.loop.create_future()
        return self._waiter

    def __aiter__(self) -> "Connection":
        return self

    async def __anext__(self) -> bytes:
        """The next piece of the answer's body."""
        while not self._chunks:
            if self.complete:
                raise StopAsyncIteration
            await self.news()
        return self.take_nowait()

    def take_nowait(self) -> bytes:
        """What is there of the body, or the first large part of that."""
        chunks = self._chunks
        if len(chunks) == 1:
            piece = chunks.popleft()
            self._waiting = 0
        elif self._waiting <= JOINED_BYTES:
            piece = b"".join(chunks)
            chunks.clear()
            self._waiting = 0
        else:
            piece = chunks.popleft()
            self._waiting -= len(piece)
        if self._paused and self._waiting <= LOW_WATER and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece

    def whole_nowait(self) -> bytes | None:
        """All that was not taken yet of an answer's body, if its end is there."""
        if not self.complete:
            return None
        piece = b"".join(self._chunks)
        self._chunks.clear()
        self._waiting = 0
        return piece

    @property
    def is_reusable(self) -> bool:
        """Whether the last exchange ended as it should and the host keeps the connection open."""
        return self._error is None and self.complete and self._keep_alive

    @property
    def is_open(self) -> bool:
        return self._error is None and self._transport is not None and not self._transport.is_closing()

    def end(self) -> None:
        """The exchange is over; what was not read of a whole answer is dropped. The host has nothing more to say."""
        self._in_exchange = False
        if self._chunks:
            self.whole_nowait()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def fail(self, error: BaseException) -> None:
        """End the connection; whoever waits for something on it gets `error`."""
        if self._error is None:
            self._error = error
        self._wake()
        _done(self._room)
        _done(self._go)
        if self._transport is not None:
            self._transport.abort()

    def hang_up(self) -> None:
        self.fail(HostUnreachable(f"we hung up on {self._address}"))

    def _wake(self) -> None:
        if self.told is None:
            _done(self._waiter)
        else:
            told, self.told = self.told, None
            told()

    # What the event loop says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # what a stream protocol is always given
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        if self._raw_left >= len(data):
            self._raw_left -= len(data)
            self._chunks.append(data)
            self._waiting += len(data)
            self.complete = not self._raw_left
        elif self._in_exchange and not self._raw_left:
            self._parse(data)
        else:
            self.fail(HostBroken(f"{self._address} sent more than its answer"))
        if self._waiting > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def _parse(self, data: bytes) -> None:
        self._overhead += len(data)
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail(HostBroken(f"{self._address} switched protocols without being asked"))
        except httptools.HttpParserError as error:
            cause = error.__context__
            problem = cause if isinstance(cause, HostBroken) else HostBroken(f"{self._address}: not HTTP: {error}")
            self.fail(problem)
        if self._overhead > MAX_HEAD_BYTES + len(data) and not self.complete:
            self.fail(self._too_long())
        if self._length is not None and not self.complete:
            self._raw_left = self._length
            self._parser = None  # it does not see the rest of this body: the next exchange has another

    def eof_received(self) -> None:
        return None  # closes the transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._until_close and exc is None and self._error is None:
            self.complete = True
        if self.status and not self.complete:
            self.fail(HostBroken(f"{self._address} broke off in the middle of its answer"))
        else:
            self.fail(HostUnreachable(f"{self._address} hung up before it answered", sent=self.used > 0))
        self._transport = None
        _done(self.closed)

    def pause_writing(self) -> None:
        self._room = self.loop.create_future()

    def resume_writing(self) -> None:
        _done(self._room)
        self._room = None

    # What the parser says. What is raised here is the context of what comes out of `feed_data`.

    def on_message_begin(self) -> None:
        if self.complete:
            raise HostBroken(f"{self._address} gave a second answer to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # headers behind a body are for nobody
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = cast(httptools.HttpResponseParser, self._parser)
        status = parser.get_status_code()
        if status < 200:
            self._skip(status)
            return
        if len(self.headers) > MAX_HEADERS or self._overhead > MAX_HEAD_BYTES:
            self._check_head()
        self._overhead = 0
        self._keep_alive = parser.should_keep_alive()
        self._find_length(status)
        self.status = status
        if self._go is not None:
            _done(self._go)

    def _check_head(self) -> None:
        """What came with the head may be body: count what is head."""
        size = sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
            raise self._too_long()

    def _skip(self, status: int) -> None:
        """An answer before the answer: 100 lets us send the body, the others say nothing to us."""
        self._interim = True
        self.headers = []
        if status == 100:
            _done(self._go)

    def _find_length(self, status: int) -> None:
        if self._is_head or status in NO_BODY:
            self.complete = True
            self._parser = None if self._is_head else self._parser  # it would wait for a body
            return
        found = dict(self.headers)
        coding, length = found.get(b"transfer-encoding"), found.get(b"content-length")
        if coding is None and length is not None:
            self._length = int(length)
        elif coding is None:
            self._until_close = True
        elif coding.strip().lower() != b"chunked":
            raise HostBroken(f"{self._address} answered in a transfer coding that we do not speak")

    def on_chunk_header(self) -> None:
        self._overhead = 0

    def on_body(self, data: bytes) -> None:
        if self.complete:
            raise HostBroken(f"{self._address} sent a body where there is none")
        self._overhead = 0
        if self._length is not None:
            self._length -= len(data)
        self._chunks.append(data)
        self._waiting += len(data)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        else:
            self.complete = True

    def _too_long(self) -> HostBroken:
        return HostBroken(
            f"the head of the answer of {self._address} has more than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers"
        )


def _done(waited: asyncio.Future[None] | None) -> None:
    if waited is not None and not waited.done():
        waited.set_result(None)
