"""One HTTP/1.1 connection to a guest: a request goes out, an answer comes in, both streamed with flow control."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import cast

import httptools

from contract.errors import WarrenError
from poold.errors import GuestError
from poold.link.tunnel import Tunnel

MAX_HEAD_BYTES = 32 << 10
HIGH_WATER = 256 << 10  # of an answer's body waiting for its reader; then the guest has to wait
LOW_WATER = 64 << 10
STALL_LIMIT_S = 60.0  # how long a guest may take no byte of a request before it counts as gone
SILENCE_LIMIT_S = 45.0  # in the middle of an answer; a guest that has nothing to tell says so every 15 s
READ_LIMIT_S = 30.0  # for all of a short body, once its head is there

Body = bytes | AsyncIterator[bytes]


class Answer:
    """A guest's answer: its head is there, its body is read piece by piece."""

    def __init__(self, connection: "Connection", status: int, headers: Mapping[str, str]) -> None:
        self._connection = connection
        self.status = status
        self.headers = headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. The next read from the guest waits until this one has been taken."""
        while chunk := await self._connection.next_chunk():
            yield chunk

    async def read(self, limit: int) -> bytes:
        """The whole body, or `GuestError` if it is longer than `limit` or does not come to its end."""
        body = bytearray()
        try:
            async with asyncio.timeout(READ_LIMIT_S):
                async for chunk in self.chunks():
                    body += chunk
                    if len(body) > limit:
                        raise GuestError(f"the guest's answer is longer than {limit} bytes")
        except TimeoutError as error:
            raise GuestError(f"the guest's answer did not end within {READ_LIMIT_S:g} s") from error
        return bytes(body)


class Connection(asyncio.Protocol):
    """The protocol of one connection. One exchange at a time; `is_reusable` says whether another may follow."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._failed: WarrenError | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._reset()
        self._in_exchange = False

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._overhead = 0  # bytes since the guest said something that we can use
        self._headers: dict[str, str] = {}
        self._head: asyncio.Future[int] = self._loop.create_future()
        self._chunks: deque[bytes] = deque()
        self._waiting = 0  # bytes in _chunks
        self._complete = False
        self._cut_short = False  # the answer came before the whole request was sent
        self._paused = False
        self._news = asyncio.Event()
        self._may_upgrade = False
        self._arrived: bytes | None = None  # after an upgrade: what came behind the answer's head

    # What a caller does.

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: Body | None) -> None:
        """Send a request. An answer that comes before the body is through stops the sending: it is a refusal."""
        self._raise_if_failed()
        self._reset()
        self._in_exchange = True
        self._may_upgrade = "Upgrade" in headers
        lines = [f"{method} {target} HTTP/1.1", "Host: guest", *(f"{name}: {value}" for name, value in headers.items())]
        if isinstance(body, bytes):
            lines.append(f"Content-Length: {len(body)}")
        elif body is not None and "Content-Length" not in headers:
            lines.append("Transfer-Encoding: chunked")
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        await self._write(head + body if isinstance(body, bytes) else head)
        if body is not None and not isinstance(body, bytes):
            await self._send_pieces(body, chunked="Content-Length" not in headers)

    async def _send_pieces(self, body: AsyncIterator[bytes], *, chunked: bool) -> None:
        async for piece in body:
            if piece:
                await self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            if self._has_answered:
                self._cut_short = True
                return
        if chunked:
            await self._write(b"0\r\n\r\n")

    async def answer(self) -> Answer:
        """Wait for the head of the answer."""
        status = await asyncio.shield(self._head)
        return Answer(self, status, self._headers)

    async def next_chunk(self) -> bytes:
        """The next piece of the body; empty at its end."""
        while not self._chunks:
            if self._complete:
                return b""
            self._raise_if_failed()
            self._news.clear()
            await self._wait_for_news()
        chunk = self._chunks.popleft()
        self._waiting -= len(chunk)
        if self._paused and self._waiting <= LOW_WATER and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return chunk

    def upgraded(self) -> Tunnel:
        """After an answer of 101: from now on the connection is a tunnel, and no longer ours."""
        transport = self._transport
        if transport is None or self._arrived is None:
            self._raise_if_failed()
            raise GuestError("the guest said that it changes the protocol, and did not")
        self._transport = None
        tunnel = Tunnel(transport, self._arrived)
        transport.set_protocol(tunnel)
        transport.resume_reading()
        self.fail(GuestError("the connection became a tunnel"))
        return tunnel

    @property
    def is_reusable(self) -> bool:
        """Whether the last exchange ended as it should and the guest keeps the connection open."""
        return self._failed is None and not self._in_exchange and not self._chunks and not self._cut_short

    def fail(self, error: WarrenError) -> None:
        """End the connection; whoever waits for something on it gets `error`."""
        if self._failed is None:
            self._failed = error
        if not self._head.done():
            self._head.set_exception(self._failed)
            self._head.exception()  # nobody may be waiting, and that is no warning's worth
        self._news.set()
        self._may_write.set()
        if self._transport is not None:
            self._transport.abort()

    @property
    def _has_answered(self) -> bool:
        return self._head.done() and self._head.exception() is None

    def _raise_if_failed(self) -> None:
        if self._failed is not None:
            raise self._failed

    async def _write(self, data: bytes) -> None:
        if not self._may_write.is_set():
            await self._wait_for_room()
        if self._has_answered:
            return  # what it said counts, also if it hung up then
        if self._transport is None or self._transport.is_closing():
            self._raise_if_failed()
            raise GuestError("the guest hung up")
        self._transport.write(data)

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(STALL_LIMIT_S):
                await self._may_write.wait()
        except TimeoutError as error:
            raise GuestError(f"the guest took no byte of the request for {STALL_LIMIT_S:g} s") from error

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(SILENCE_LIMIT_S):
                await self._news.wait()
        except TimeoutError as error:
            raise GuestError(f"the guest fell silent for {SILENCE_LIMIT_S:g} s in the middle of an answer") from error

    # What the event loop says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # what a stream protocol is always given

    def data_received(self, data: bytes) -> None:
        if not self._in_exchange:
            self.fail(GuestError("the guest spoke without being asked"))
            return
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self.fail(GuestError(f"the guest's answer is not HTTP: {error}"))
            return
        if self._overhead > MAX_HEAD_BYTES:
            self.fail(GuestError(f"the guest's answer has a head of more than {MAX_HEAD_BYTES} bytes"))
        if self._waiting > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _upgrade(self, arrived: bytes) -> None:
        """What follows is for the tunnel, and waits for it in the kernel."""
        if not self._may_upgrade or self._transport is None:
            self.fail(GuestError("the guest changes the protocol without being asked"))
            return
        self._arrived = arrived
        self._transport.pause_reading()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.fail(GuestError("the guest hung up"))
        self._transport = None

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    # What the parser says. What is raised here comes out of `feed_data`.

    def on_message_begin(self) -> None:
        if self._complete:
            raise GuestError("a second answer to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head.done():
            raise GuestError("a header behind the body")  # there might be any number of them
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 and not (status == 101 and self._may_upgrade):
            raise GuestError(f"status {status} instead of an answer")
        self._overhead = 0
        if not self._head.done():
            self._head.set_result(status)
            self._may_write.set()

    def on_chunk_header(self) -> None:
        self._overhead = 0

    def on_body(self, data: bytes) -> None:
        self._overhead = 0
        self._chunks.append(data)
        self._waiting += len(data)
        self._news.set()

    def on_message_complete(self) -> None:
        self._complete = True
        if not self._parser.should_keep_alive() and self._failed is None:
            self._failed = GuestError("the guest closed the connection")
        self._in_exchange = False
        self._news.set()
