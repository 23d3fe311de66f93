"""One connection of a client: heads come in, each becomes an exchange, and they are answered one after the other.

The loop calls the methods of the protocol, the parser those that begin with `on_`. Every byte is a stranger's: what
could be read in two ways, is too long or comes too slowly is refused here, and whoever serves is told (`Serving`).
"""

import asyncio
import fcntl
import logging
import socket
import struct
import sys
import termios
from collections import deque
from collections.abc import Awaitable
from typing import Any, Protocol, cast

import httptools

from contract.errors import WarrenError
from gateway.errors import BadFraming, HeadTooLarge, SlowHead
from gateway.server.exchange import Exchange, Known
from gateway.server.wire import check_coding, reply_head, scope_of, target_of
from gateway.upstream.later import AT_ONCE

log = logging.getLogger("gateway.server")

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 200
MAX_WAITING = 32  # requests behind one that is being answered
WRITE_HIGH_WATER = 512 << 10
HEAD_S = 10.0  # for a head, from its first byte on
IDLE_S = 75.0  # between two requests, and before the first one
FRAMING = frozenset({b"content-length", b"transfer-encoding", b"expect", b"upgrade"})
RESET = struct.pack("ii", 1, 0)
UNREAD_S = 60.0  # for a client to take anything of replies that are complete
LINGER_S = 2.0  # for a client to read a refusal while it still sends


class Serving(Protocol):
    """What all connections share."""

    loop: asyncio.AbstractEventLoop
    now_s: float  # of the last look at the clock, at most a second ago
    date: bytes
    known: dict[bytes, Known]  # requests that came before, by their bytes

    def know(self, data: bytes, scope: dict[str, Any]) -> None:
        """These bytes are a whole request without a body, on a connection that is kept."""

    def opened(self, connection: "Connection") -> bool:
        """One more. Whether there is room for it."""

    def closed(self, connection: "Connection") -> None: ...

    def take(self, exchange: Exchange) -> None:
        """It is this one's turn to be answered."""

    def answer(self, exchange: Exchange) -> "asyncio.Task[None]":
        """Begin a task that answers."""

    def refused(self, address: str, error: WarrenError) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Something was refused before it was a request. What to tell the client: headers and body."""

    def upgrade(self, connection: "Connection", scope: dict[str, Any], rest: bytes) -> asyncio.Protocol:
        """A WebSocket is asked for. What speaks on the connection from now on."""


class Connection(asyncio.Protocol):
    """Of the exchanges `_exchanges`, the first is being answered and the last may still be coming in."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.loop = serving.loop
        self.is_lost = False
        self.transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = None
        self._exchanges: deque[Exchange] = deque()
        self._reading: Exchange | None = None  # whose body comes in
        self._is_full = False  # somebody has to take what there is of a body first
        self._room: asyncio.Future[None] | None = None  # done when the client takes bytes again
        self._is_paused = False  # nothing is read, for one of these reasons or both
        self._is_held = False  # the first exchange has not begun: the client has to take bytes first
        self._unread = 0  # bytes of replies that the client had not taken when they were last looked at
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = False
        self._head_bytes = 0  # that came since a head or a piece of a body was complete: of a head, or of trailers
        self._alone: dict[str, Any] | None = None  # the scope of a request without a body that came all by itself
        self._since_s = serving.now_s  # when it became what it is (in a head, idle, over) or the client took bytes
        self._is_over = False  # nothing more is read but to be dropped
        self._socket: dict[str, Any] | None = None  # the scope of a WebSocket that was asked for
        self._refusal: WarrenError | None = None  # of what came behind requests that are still being answered

    # What the event loop says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        client = transport.get_extra_info("peername")
        server = transport.get_extra_info("sockname")
        self.client = (client[0], client[1]) if isinstance(client, tuple) else None
        self.server = (server[0], server[1]) if isinstance(server, tuple) else None
        self._is_secure = transport.get_extra_info("sslcontext") is not None
        if not self._serving.opened(self):
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        is_new = not self._in_head and not self._exchanges
        known = self._serving.known.get(data) if is_new else None
        if known is not None:
            self._begin(Exchange(self, known.scope, known.memo))
            return
        self._alone = None
        self._parse(data)
        if is_new and self._alone is not None and self._is_between:
            self._serving.know(data, self._alone)

    def _parse(self, data: bytes) -> None:
        self._head_bytes += len(data)
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, WarrenError) else BadFraming(f"this is not HTTP/1.1: {error}"))
        else:
            if self._head_bytes > MAX_HEAD_BYTES and (self._in_head or self._reading is not None):
                self._refuse(HeadTooLarge(MAX_HEAD_BYTES, MAX_HEADERS))

    def eof_received(self) -> None:
        return None  # closes the transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._serving.closed(self)
        self.resume_writing()
        for exchange in self._exchanges:
            exchange.wake()
        self._exchanges.clear()
        self._parser = None
        self.transport = None

    def pause_writing(self) -> None:
        self._room = self.loop.create_future()
        self._heed()

    def resume_writing(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None
        self._heed()
        if self._is_held and not self.is_lost:
            self._is_held = False
            if self._exchanges:
                self._serving.take(self._exchanges[0])

    def _heed(self) -> None:
        """Read, unless a body waits for somebody or replies wait for the client. What is dropped need not wait."""
        is_paused = self._is_full or (self._room is not None and not self._is_over)
        if is_paused == self._is_paused or self.transport is None:
            return
        self._is_paused = is_paused
        if is_paused:
            self.transport.pause_reading()
            return
        self.transport.resume_reading()
        if self._in_head:
            self._since_s = self._serving.now_s  # it could not come

    # What the parser says. What is raised here is the context of what comes out of `feed_data`.

    def on_message_begin(self) -> None:
        if len(self._exchanges) > MAX_WAITING:
            raise BadFraming(f"more than {MAX_WAITING} requests wait behind one that is being answered")
        self._url, self._headers = b"", []
        self._in_head = True
        self._since_s = self._serving.now_s

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading is None:  # headers behind a body are for nobody
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = cast(httptools.HttpRequestParser, self._parser)
        headers = self._headers
        if len(headers) > MAX_HEADERS or (self._head_bytes > MAX_HEAD_BYTES and self._head_size() > MAX_HEAD_BYTES):
            raise HeadTooLarge(MAX_HEAD_BYTES, MAX_HEADERS)
        names = dict(headers)
        version, method = parser.get_http_version(), parser.get_method()
        check_coding(headers, names, version)
        path, raw, query = target_of(self._url, headers)
        head = {
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "path": path,
            "raw_path": raw,
            "query_string": query,
            "headers": headers,
        }
        self._in_head = False
        self._head_bytes = 0
        if parser.should_upgrade() and method == b"GET" and names.get(b"upgrade", b"").lower() == b"websocket":
            self._socket = scope_of("websocket", head, self._is_secure)
            return
        scope = scope_of("http", head, self._is_secure)
        scope["method"] = method.decode("ascii")
        keep = parser.should_keep_alive()
        self._alone = scope if keep and not self._exchanges and not FRAMING & names.keys() else None
        expects = names.get(b"expect", b"").lower() == b"100-continue"
        self._reading = Exchange(self, scope, None, keep=keep, expects=expects, body_ended=False)
        self._begin(self._reading)

    def _begin(self, exchange: Exchange) -> None:
        self._exchanges.append(exchange)
        if len(self._exchanges) > 1:
            return
        if self._room is None:
            self._serving.take(exchange)
        else:
            self._is_held = True

    def on_body(self, data: bytes) -> None:
        self._head_bytes = 0
        if self._reading is not None and not self._reading.feed(data):
            self._is_full = True
            self._heed()

    def on_message_complete(self) -> None:
        if self._reading is not None:
            self._reading.finish()
            self._reading = None
            self._head_bytes = 0

    # What exchanges say.

    def write(self, *pieces: bytes) -> Awaitable[None]:
        if self.transport is not None:
            if len(pieces) == 1:
                self.transport.write(pieces[0])
            else:
                self.transport.writelines(pieces)
        return AT_ONCE if self._room is None else self._room

    def answer(self, exchange: Exchange) -> "asyncio.Task[None]":
        return self._serving.answer(exchange)

    def read_on(self) -> None:
        if self._is_paused:
            self._is_full = False
            self._heed()

    def replied(self, *, keep: bool) -> None:
        self._exchanges.popleft()
        self._since_s = self._serving.now_s
        self.read_on()  # there may be a body that nobody took
        if not keep:
            self.finish()
        elif self._exchanges and self._room is not None:
            self._is_held = True
        elif self._exchanges:
            self._serving.take(self._exchanges[0])
        elif self._refusal is not None:
            self._say_no(self._refusal)

    def break_off(self, *, is_framed: bool) -> None:
        if self.transport is not None and is_framed:
            self._exchanges.clear()
            self._is_over = True
            self._since_s = self._serving.now_s
            self.transport.close()  # what was sent before arrives
        elif self.transport is not None:
            # A body that ends with the connection: only a reset says that this is no end.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.abort()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def date_line(self) -> bytes:
        return self._serving.date

    # Ends.

    @property
    def is_idle(self) -> bool:
        """No request is under way."""
        return not self._exchanges

    @property
    def _is_between(self) -> bool:
        """What has come ends with a request, and another may follow."""
        return self._reading is None and not self._in_head and not self._is_over and self._socket is None

    def finish(self) -> None:
        """No more requests. The client may have something under way: it is read, or our last words would be lost."""
        self._is_over = True
        self._exchanges.clear()  # those behind it were not begun
        self._since_s = self._serving.now_s
        if self.transport is None:
            return
        if self._reading is None:
            self.transport.close()
        elif self.transport.can_write_eof():
            self.transport.write_eof()
        self.read_on()

    def look(self, now_s: float) -> None:
        """Once a second: is it too late for something?"""
        age_s = now_s - self._since_s
        if self._in_head and not self._is_over and not self._is_paused:
            if age_s > HEAD_S:
                self._refuse(SlowHead(f"the head of the request did not come within {HEAD_S:g} s"))
        elif (self.is_idle or self._is_held or self._is_over) and self.transport is not None:
            unread = _unread(self.transport)
            if unread != self._unread:
                self._unread, self._since_s = unread, now_s
            elif unread:
                if age_s > UNREAD_S:
                    self.abort()
            elif self.is_idle:
                self._let_go(age_s)

    def _let_go(self, age_s: float) -> None:
        """It has been idle, or over, for this long."""
        if self._is_over and age_s > LINGER_S:
            self.abort()
        elif not self._is_over and age_s > IDLE_S and self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, error: WarrenError) -> None:
        """Say no and hang up, behind the replies that are due. Nobody knows where another request would begin."""
        self._is_over = True
        self._since_s = self._serving.now_s
        if self._reading is not None:
            self._tell(error)
            self._reading.break_off()  # whoever answers sees a body that does not go on, and says so
        elif self._exchanges:
            self._refusal = error
        else:
            self._say_no(error)

    def _say_no(self, error: WarrenError) -> None:
        headers, body = self._tell(error)
        self.write(reply_head(error.status, headers, self.date_line() + b"connection: close\r\n") + body)
        self._since_s = self._serving.now_s
        if self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()

    def _tell(self, error: WarrenError) -> tuple[list[tuple[bytes, bytes]], bytes]:
        return self._serving.refused(self.client[0] if self.client else "", error)

    def _upgrade(self, rest: bytes) -> None:
        """The parser has read a head that asks for another protocol, and stopped behind it."""
        if self._socket is None:  # one that we do not speak: the request was taken as any other
            self._parser = None
            if rest:
                self.data_received(rest)
        elif self._exchanges or self._room is not None:
            self._refuse(BadFraming("a WebSocket must not wait behind another request"))
        elif self.transport is not None:
            self._serving.closed(self)
            self.transport.set_protocol(self._serving.upgrade(self, self._socket, rest))

    def _head_size(self) -> int:
        return len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)


def _unread(transport: asyncio.Transport) -> int:
    """Bytes that the client has not taken, with those in the kernel as long as it has no room for more."""
    ours = transport.get_write_buffer_size()
    if not ours:
        return 0
    found = transport.get_extra_info("socket")
    try:
        kernels = fcntl.ioctl(-1 if found is None else found.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):  # it is just being closed
        return ours
    return ours + int.from_bytes(kernels, sys.byteorder)
