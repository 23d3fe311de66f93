"""Requests to one host: the only HTTP client that the gateway has."""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from types import TracebackType
from typing import Any

import orjson

from contract.errors import BadField
from gateway.errors import HostBroken, HostUnreachable
from gateway.upstream.connection import Connection
from gateway.upstream.dial import Connect, Dialler, Tls
from gateway.upstream.later import AT_ONCE, Later
from gateway.upstream.parts import Headers, declared_length, header_block, request_head
from gateway.upstream.pool import Pool

MAX_JSON_BYTES = 4 << 20
WANTED_S = 1.0  # how long a host may take to say that it wants a body
# May be done twice where nobody knows whether it was done once.
REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})

Body = bytes | AsyncIterable[bytes] | None


class Answer:
    """A host's answer: its head is there, its body is read piece by piece."""

    __slots__ = ("chunks", "headers", "status")

    def __init__(self, connection: Connection) -> None:
        self.status = connection.status
        self.headers = connection.headers  # names in lower case
        self.chunks = connection

    def whole_nowait(self) -> bytes | None:
        """The body, or what was not read of it yet, if all of it has come."""
        return self.chunks.whole_nowait()

    async def read(self, limit: int) -> bytes:
        """All of the body, or `HostBroken` if it is longer than `limit`."""
        body = bytearray()
        async for chunk in self.chunks:
            body += chunk
            if len(body) > limit:
                raise HostBroken(f"an answer has more than {limit} bytes")
        return bytes(body)


class Begun:
    """A request that was sent to a host before anybody waits for the answer.

    Whoever enters an exchange with it has its connection from then on. `close` is called when that can happen no more.
    """

    __slots__ = ("_connection", "host", "upstream")

    def __init__(self, host: str, upstream: "Upstream", connection: Connection) -> None:
        self.host = host
        self.upstream = upstream
        self._connection: Connection | None = connection

    def take_nowait(self) -> Connection | None:
        """The connection, once."""
        connection, self._connection = self._connection, None
        return connection

    def close(self) -> None:
        """Nobody loses a connection: if it was not taken, it is kept for others after a whole answer, else closed."""
        connection = self.take_nowait()
        if connection is not None:
            self.upstream.give_back(connection)


class Exchange:
    """One request and its answer, as a block. Leaving it early hangs up."""

    __slots__ = (
        "_asked",
        "_begun",
        "_body",
        "_connection",
        "_head",
        "_length",
        "_method",
        "_pool",
        "_sending",
        "_waits",
    )

    def __init__(
        self,
        pool: Pool,
        method: str,
        head: bytes,
        body: Body,
        *,
        length: int | None,
        waits: bool,
        asked: Begun | None,
    ) -> None:
        self._pool = pool
        self._method = method
        self._head = head
        self._body = body
        self._length = length  # of a body that is an iterable, where it is known
        self._waits = waits  # until the host wants the body
        self._asked = asked  # this was sent already
        self._begun = False  # some of such a body was taken
        self._connection: Connection | None = None
        self._sending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Answer:
        asked = None if self._asked is None else self._asked.take_nowait()
        kept = asked or self._pool.take_nowait()
        connection = kept or await self._pool.dial()
        while True:
            self._connection = connection
            try:
                if connection is not asked:
                    self._begin(connection)
                while not connection.status:
                    await connection.news()
                return Answer(connection)
            except BaseException as error:
                await self._leave(connection)
                # The host may have closed a kept connection just before we asked.
                may_repeat = self._method in REPEATABLE and not self._begun
                if connection is not kept or not may_repeat or not isinstance(error, HostUnreachable):
                    raise
            connection = await self._pool.dial()

    def _begin(self, connection: Connection) -> None:
        body = self._body
        if body is None:
            connection.begin(self._head, self._method)
        elif isinstance(body, bytes):
            connection.begin(self._head + body, self._method)
        else:
            connection.begin(self._head, self._method)
            self._sending = asyncio.create_task(self._send(connection, body))

    async def _send(self, connection: Connection, body: AsyncIterable[bytes]) -> None:
        """Send the body, piece by piece. What goes wrong with it is told to whoever reads the answer."""
        try:
            if self._waits:
                await connection.until_wanted(WANTED_S)
                if connection.status:
                    raise Unwanted
            await self._send_pieces(connection, body)
        except Unwanted:
            raise
        except Exception as error:
            connection.fail(error)
            raise

    async def _send_pieces(self, connection: Connection, body: AsyncIterable[bytes]) -> None:
        left = self._length
        async for piece in body:
            self._begun = True
            if left is not None:
                left -= len(piece)
                if left < 0:
                    break
                await connection.write(piece)
            elif piece:
                await connection.write(b"%x\r\n" % len(piece), piece, b"\r\n")
        if left is None:
            await connection.write(b"0\r\n\r\n")
        elif left:
            raise BadField("content-length", self._length, "is not the length of the body")

    def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> Awaitable[None]:
        connection = self._connection
        if connection is None:
            return AT_ONCE
        if self._sending is not None:
            return self._leave(connection)
        self._pool.give_back(connection)
        return AT_ONCE

    async def _leave(self, connection: Connection) -> None:
        """Keep the connection for the next exchange if all of this one went through, else hang up."""
        self._connection = None
        sending = self._sending
        if sending is None:
            self._pool.give_back(connection)
            return
        self._sending = None
        if not sending.done():
            self._pool.drop(connection)
            sending.cancel()
            await asyncio.wait([sending])
        if sending.cancelled() or sending.exception() is not None:
            self._pool.drop(connection)
        else:
            self._pool.give_back(connection)


class Unwanted(Exception):
    """The host answered before it had seen the body, and we did not send it."""


class Upstream:
    """One host, or whatever speaks HTTP behind `connect`. Safe to use from many tasks. Over TLS `host` is its name.

    Raises `HostUnreachable` (`sent` says whether the host may have heard the request) and `HostBroken`, and what a
    body given as an iterable raises.
    """

    def __init__(
        self, address: str, *, host: str | None = None, tls: Tls | None = None, connect: Connect | None = None
    ) -> None:
        self.dialler = Dialler(address, tls, connect, host)
        self.address = address
        self._pool = Pool(self.dialler)
        self._host = self.dialler.authority

    @property
    def later(self) -> Later:
        return self._pool.later

    @property
    def has_open(self) -> bool:
        """Whether there is a connection that waits, as far as we know."""
        return self._pool.has_idle

    def head_of(self, method: str, target: str, lines: bytes) -> bytes:
        """The head of a request without a body, but for the empty line at its end. `lines` are whole headers."""
        return request_head(method, target, self._host, (lines,)).removesuffix(b"\r\n")

    def ask_nowait(self, method: str, head: bytes, told: Callable[[], None]) -> Connection | None:
        """Ask without a body over a connection that is open; None if there is none.

        `told` is called once, when something came or the connection broke. Then either `give_back` it or go on with
        `stream(…, asked=Begun(…))`.
        """
        connection = self._pool.take_nowait()
        if connection is not None:
            connection.begin(head, method)
            connection.told = told
        return connection

    def give_back(self, connection: Connection) -> None:
        """The answer of `ask_nowait` was read."""
        self._pool.give_back(connection)

    def stream(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: Body = None,
        *,
        waits: bool = False,
        block: bytes = b"",
        asked: Begun | None = None,
    ) -> Exchange:
        """A request as a block that gives its answer.

        A body that is an iterable is sent in chunks unless `headers` has its content-length. `waits`: the body is not
        begun before the host has said that it wants it, or nothing for a second. `block`: further headers, as
        `header_block` wrote them. `asked`: this was sent already.
        """
        framing, length = b"", None
        if isinstance(body, bytes):
            framing = b"content-length: %d\r\n" % len(body)
        elif body is not None:
            length = declared_length(headers)
            framing = b"transfer-encoding: chunked\r\n" if length is None else b""
            if waits:
                framing += b"expect: 100-continue\r\n"
        head = request_head(method, target, self._host, (block, header_block(headers), framing))
        return Exchange(self._pool, method, head, body, length=length, waits=waits, asked=asked)

    async def call(
        self,
        method: str,
        target: str,
        *,
        ticket: str,
        value: Any = None,
        headers: Headers = (),
        max_bytes: int = MAX_JSON_BYTES,
    ) -> tuple[int, Any, list[tuple[bytes, bytes]]]:
        """Ask in JSON and read the answer's JSON (None where there is none). The caller sets the deadline."""
        asked = [(b"warren-ticket", ticket.encode()), (b"accept", b"application/json"), *headers]
        body = None
        if value is not None:
            asked.append((b"content-type", b"application/json"))
            body = orjson.dumps(value)
        async with self.stream(method, target, asked, body) as answer:
            data = await answer.read(max_bytes)
            return answer.status, self._decoded(data), answer.headers

    def _decoded(self, data: bytes) -> Any:
        if not data:
            return None
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise HostBroken(f"{self.address} answered with what is not JSON: {error}") from None

    async def close(self) -> None:
        """Hang up everywhere. Requests under way break off."""
        await self._pool.close()
