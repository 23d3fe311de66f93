"""The HTTP server: connections, bodies and answers, with flow control both ways.

It knows nothing of routes: it is given one function from a request to an answer. A client that closes its side has
left: what is being answered is cancelled. No request can end the server; what nobody foresaw is `internal` and logged.
"""

import asyncio
import contextlib
import io
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from warren_guest.bell import Bell
from warren_guest.errors import RefusedError
from warren_guest.wire import DONE, REASONS, Head, Parser, WireError, to_json

log = logging.getLogger(__name__)

# Writes to disk are batches of this size, so that hops to a thread are rare and a small file is one write.
BATCH = 1 << 20
# Reading from the socket pauses here: one batch is being written while the next one arrives.
_BODY_HIGH = 2 * BATCH
_PIPELINED_HIGH = 64 * 1024
_WRITE_HIGH = 256 * 1024
# What a refused upload may still send before we hang up: the refusal must reach a client that writes first.
_DISCARD_LIMIT_S = 5.0


class Body:
    """The body of one request as it arrives. Never holds more than two batches and one read."""

    def __init__(self, on_room: Callable[[], None], on_wanted: Callable[[], None]) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._complete = False
        self._error: WireError | None = None
        self._bell = Bell()
        self._on_room = on_room
        self._on_wanted = on_wanted

    @property
    def is_full(self) -> bool:
        return self._size >= _BODY_HIGH

    @property
    def is_complete(self) -> bool:
        return self._complete

    @property
    def is_drained(self) -> bool:
        """Whether everything was taken."""
        return self._complete and not self._pieces

    def push(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        self._bell.ring()

    def finish(self, error: WireError | None = None) -> None:
        self._complete = True
        self._error = error
        self._bell.ring()

    async def take(self, at_least: int = 1) -> list[bytes]:
        """What has arrived, once that is `at_least` bytes or all there is. Empty at the end of the body."""
        if not self._complete:
            self._on_wanted()
        while self._size < at_least and not self._complete:
            await self._bell.wait()
        if self._error is not None:
            raise RefusedError("bad_request", str(self._error))
        pieces = list(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._on_room()
        return pieces

    async def whole(self, limit: int) -> bytes:
        """The complete body. Raises `body_too_large` beyond `limit` bytes."""
        pieces: list[bytes] = []
        size = 0
        while batch := await self.take():
            pieces += batch
            size += sum(map(len, batch))
            if size > limit:
                raise RefusedError("body_too_large", f"the body is larger than {limit} bytes")
        return b"".join(pieces)


@dataclass(slots=True)
class Request:
    """One request. `arrived` is the loop's time when its head was complete."""

    head: Head
    body: Body
    arrived: float
    connection: "Connection"


@dataclass(slots=True)
class Answer:
    """An answer that is known as a whole."""

    body: bytes = b"{}"
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Stream:
    """An answer that is told as it happens. `close` is called exactly once, even if no piece was ever asked for."""

    pieces: AsyncGenerator[bytes, None]
    content_type: str
    close: Callable[[], None] = lambda: None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class FileRange:
    """`count` bytes of an open file from `offset`. The server closes it."""

    file: io.FileIO
    offset: int
    count: int
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Upgrade:
    """The connection becomes something else: `carry` is given its transport and what arrived already, and ends it.

    `close` is called exactly once, even if nothing was ever carried.
    """

    protocol: str
    carry: Callable[[asyncio.Transport, bytes], Awaitable[None]]
    close: Callable[[], None]


AnyAnswer = Answer | Stream | FileRange | Upgrade
Respond = Callable[[Request], Awaitable[AnyAnswer]]


class PeerCheck(Protocol):
    def __call__(self, peername: Any) -> bool:
        """Whether this peer is served."""
        ...


def refused(error: RefusedError) -> Answer:
    return Answer(to_json(error.as_json()), error.status)


# Where bytes arrive, for all connections: each takes its own out at once. A buffer per read, as asyncio makes them for
# other protocols, is asked of the kernel and given back every time, which under emulation costs more than the read.
_RECEIVED = memoryview(bytearray(256 << 10))


class Connection(asyncio.BufferedProtocol):
    """One connection: requests one after the other, each answered by one call of `respond`."""

    def __init__(self, respond: Respond, is_served: PeerCheck, connections: set["Connection"]) -> None:
        self._respond = respond
        self._is_served = is_served
        self._connections = connections
        self._parser = Parser()
        self._arrivals = Bell()
        self._writable = Bell()
        self._write_paused = False
        self._request: Request | None = None
        self._broken: WireError | None = None
        self._owes_continue = False

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        if not self._is_served(transport.get_extra_info("peername")):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(_WRITE_HIGH)
        self._connections.add(self)
        self._task = self._loop.create_task(self._serve())

    def get_buffer(self, _sizehint: int) -> memoryview:
        return _RECEIVED

    def buffer_updated(self, nbytes: int) -> None:
        self._parser.feed(bytes(_RECEIVED[:nbytes]))
        self._parse()

    def eof_received(self) -> None:
        # The client has left. What it was being told may never be flushed, so nothing may wait for that.
        self._task.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._connections:
            self._connections.discard(self)
            self._task.cancel()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._writable.ring()

    def hang_up(self) -> None:
        self._transport.abort()

    # Requests.

    def _parse(self) -> None:
        """Hand on what has arrived. Stops at the end of a request until the next one is asked for."""
        body = self._request.body if self._request else None
        try:
            while body is None or not body.is_complete:
                part = self._parser.next()
                if part is None:
                    break
                if isinstance(part, Head):
                    body = self._begin(part)
                elif part is DONE:
                    cast(Body, body).finish()
                else:
                    cast(Body, body).push(cast(bytes, part))
        except WireError as exc:
            self._broken = exc
            if body is not None:
                body.finish(exc)
            self._arrivals.ring()
        self._pause_or_resume()

    def _begin(self, head: Head) -> Body:
        body = Body(self._pause_or_resume, self._continue)
        self._request = Request(head, body, self._loop.time(), self)
        self._owes_continue = head.headers.get("expect", "").lower() == "100-continue"
        self._arrivals.ring()
        return body

    def _pause_or_resume(self) -> None:
        body = self._request.body if self._request else None
        waits = self._broken is not None or (
            self._parser.held > _PIPELINED_HIGH and body is not None and body.is_complete
        )
        if waits or (body is not None and body.is_full):
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _continue(self) -> None:
        if self._owes_continue:
            self._owes_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _next_request(self) -> Request:
        """The next request. Raises `WireError` if what comes is none."""
        self._request = None
        self._parse()
        while self._request is None:
            if self._broken is not None:
                raise self._broken
            await self._arrivals.wait()
        return self._request

    async def _serve(self) -> None:
        try:
            while await self._serve_one():
                pass
        except ConnectionError:
            pass  # the client left in the middle of an answer
        except (RefusedError, OSError) as exc:
            log.info("an answer was cut off: %s", exc)
        except Exception:
            log.exception("an answer was cut off")
        finally:
            self._transport.close()

    async def _serve_one(self) -> bool:
        """Answer one request. False if the connection cannot be used for another."""
        try:
            request = await self._next_request()
        except WireError as exc:
            await self._send(refused(RefusedError("bad_request", str(exc))), keep=False)
            return False
        try:
            answer = await self._respond(request)
        except RefusedError as exc:
            answer = refused(exc)
        except Exception:
            log.exception("%s %s failed", request.head.method, request.head.path[:200])
            answer = refused(RefusedError("internal", "the guest has a bug; its log says more"))
        # A client that still waits for 100 Continue sends its body or its next request; only it knows which.
        is_unsure = self._owes_continue and not request.body.is_complete
        keep = request.head.keeps_alive and self._broken is None and not is_unsure
        await self._send(answer, keep=keep)
        if isinstance(answer, Upgrade):
            return False
        return not is_unsure and await self._discard(request.body) and keep

    async def _discard(self, body: Body) -> bool:
        """Read what the handler left of the body. False if the client sends more than we want to wait for."""
        if body.is_complete:
            return self._broken is None
        try:
            async with asyncio.timeout(_DISCARD_LIMIT_S):
                while await body.take():
                    pass
        except (TimeoutError, RefusedError):
            return False
        return True

    # Answers.

    async def _send(self, answer: AnyAnswer, *, keep: bool) -> None:
        match answer:
            case Answer():
                head = _head(answer.status, answer.content_type, answer.headers, len(answer.body), keep=keep)
                await self._write(head + answer.body)
            case Stream():
                try:
                    await self._send_stream(answer, keep=keep)
                finally:
                    answer.close()
            case FileRange():
                try:
                    await self._send_file(answer, keep=keep)
                finally:
                    answer.file.close()
            case Upgrade():
                try:
                    await self._send_upgrade(answer)
                finally:
                    answer.close()

    async def _send_stream(self, answer: Stream, *, keep: bool) -> None:
        head = _head(answer.status, answer.content_type, answer.headers, None, keep=keep)
        async with contextlib.aclosing(answer.pieces) as pieces:
            async for piece in pieces:
                # The head travels with the first piece: one packet, one wake-up of the reader.
                await self._write(b"%b%x\r\n%b\r\n" % (head, len(piece), piece))
                head = b""
        await self._write(head + b"0\r\n\r\n")

    async def _send_file(self, answer: FileRange, *, keep: bool) -> None:
        head = _head(answer.status, "application/octet-stream", answer.headers, answer.count, keep=keep)
        await self._write(head)
        if answer.count == 0:
            return
        sent = await self._loop.sendfile(self._transport, answer.file, answer.offset, answer.count)
        if sent != answer.count:
            raise ConnectionAbortedError("the file became shorter while it was sent; a cut says so")

    async def _send_upgrade(self, answer: Upgrade) -> None:
        head = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {answer.protocol}\r\n\r\n"
        await self._write(head.encode())
        try:
            await answer.carry(self._transport, self._parser.rest())
        finally:  # whoever carries is told of the connection's end, and we are not
            self._connections.discard(self)

    async def _write(self, data: bytes) -> None:
        if self._transport.is_closing():
            raise ConnectionResetError("the client left")
        self._transport.write(data)
        while self._write_paused:
            await self._writable.wait()


def _head(status: int, content_type: str, headers: dict[str, str], length: int | None, *, keep: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS[status]}", f"Content-Type: {content_type}"]
    lines.append("Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if not keep:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
