"""One request and its reply, as ASGI has them: what the client sends is received, what is sent goes to the client."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.server.wire import CONTINUE, NO_BODY, OURS, reply_head
from gateway.upstream.later import AT_ONCE

log = logging.getLogger("gateway.server")

BODY_HIGH_WATER = 256 << 10  # of a body waiting for whoever receives it; then the client has to wait
JOINED_BYTES = 16 << 10  # a piece up to this size is copied behind the head
DISCONNECT = {"type": "http.disconnect"}
INTERNAL = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Line(Protocol):
    """The connection, as an exchange sees it."""

    loop: asyncio.AbstractEventLoop
    is_lost: bool
    client: tuple[str, int] | None
    server: tuple[str, int] | None

    def write(self, *pieces: bytes) -> Awaitable[None]:
        """Send to the client; done when it takes more."""

    def answer(self, exchange: "Exchange") -> "asyncio.Task[None]":
        """Begin a task that answers."""

    def read_on(self) -> None:
        """There is room for more, of this body or behind it."""

    def replied(self, *, keep: bool) -> None:
        """The reply is over. `keep`: another request may follow."""

    def break_off(self, *, is_framed: bool) -> None:
        """End it so that the client sees that something is missing. `is_framed`: it sees that by what it has."""

    def date_line(self) -> bytes:
        """The header that says what time it is."""


@dataclass(slots=True)
class Known:
    """A request that came before, byte for byte: what it says, and what others remember of it, by client."""

    scope: dict[str, Any]
    memo: dict[str, Any]


class Exchange:
    """Belongs to one task that answers, and to the connection that feeds it."""

    __slots__ = (
        "_body", "_expects", "_head", "_is_bodiless", "_is_broken", "_is_chunked", "_is_told", "_keep", "_left",
        "_line", "_status", "_waiter", "_waiting", "body_ended", "is_over", "memo", "scope", "task",
    )  # fmt: skip

    def __init__(
        self,
        line: Line,
        scope: dict[str, Any],
        memo: dict[str, Any] | None,
        *,
        keep: bool = True,
        expects: bool = False,
        body_ended: bool = True,
    ) -> None:
        self.scope = scope  # of a known request: not to be changed
        self.memo = memo  # of a known request
        self.task: asyncio.Task[None] | None = None  # of whoever answers
        self._line = line
        self._keep = keep
        self._expects = expects  # the client waits for a word before it sends its body
        self._body: deque[bytes] = deque()
        self._waiting = 0  # bytes in _body
        self._waiter: asyncio.Future[None] | None = None
        self.body_ended = body_ended
        self._is_broken = False
        self._is_told = False  # whoever receives has heard that the body ended
        self._status = 0
        self._head: bytes | None = None  # not written yet: it goes with the first piece of the body
        self._is_bodiless = False
        self._is_chunked = False
        self._left: int | None = None  # of the reply's body, where its length was said
        self.is_over = False

    # What the connection says.

    def feed(self, data: bytes) -> bool:
        """A piece of the body. Whether there is room for more."""
        self._body.append(data)
        self._waiting += len(data)
        self.wake()
        return self._waiting <= BODY_HIGH_WATER

    def finish(self) -> None:
        """That was the last piece."""
        self.body_ended = True
        self.wake()

    def break_off(self) -> None:
        """No more of the body comes, and it has not ended."""
        self._is_broken = True
        self._keep = False
        self.wake()

    def wake(self) -> None:
        """Something has changed for whoever receives."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def drop(self) -> None:
        """Whoever answers is gone. What is missing must not look like an end."""
        if self.is_over or self._line.is_lost:
            return
        self.is_over = True
        if self._status:
            self._line.break_off(is_framed=self._is_framed)
        else:
            self._line.write(INTERNAL)
            self._line.replied(keep=False)

    @property
    def address(self) -> str:
        """Of the client."""
        client = self._line.client
        return client[0] if client else ""

    def own_scope(self) -> dict[str, Any]:
        """The scope, with what is only true of this request."""
        if self.memo is None:
            return self.scope
        return {**self.scope, "client": self._line.client, "server": self._line.server}

    @property
    def is_lost(self) -> bool:
        return self._line.is_lost

    def answer(self, **more: Any) -> "asyncio.Task[None]":
        """Let the application answer, with `more` in the scope."""
        self.scope, self.memo = {**self.own_scope(), **more}, None
        return self._line.answer(self)

    # What the application does.

    def reply(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """All of a reply at once, from whoever need not wait."""
        line = self._line
        if line.is_lost:
            return
        self._begin(status, headers)
        if self._head is None or self._left != len(body) or self._is_bodiless:
            self._go_on(body, is_last=True)
        else:  # almost always: all of it in one piece
            self.is_over = True
            line.write(self._head + body)
            line.replied(keep=self._keep and self.body_ended)

    async def receive(self) -> Any:
        """The next piece of the body. Behind the last one nothing comes but the client's leaving."""
        line = self._line
        if self._expects and not self._status and not self._body and not self.body_ended:
            self._expects = False
            await line.write(CONTINUE)
        while not line.is_lost and (self._is_told or not (self._body or self.body_ended or self._is_broken)):
            self._waiter = line.loop.create_future()
            await self._waiter
        if self._is_told or self._is_broken or (line.is_lost and not self.body_ended):
            return DISCONNECT
        piece = b"".join(self._body)
        self._body.clear()
        self._waiting = 0
        self._is_told = self.body_ended
        line.read_on()
        return {"type": "http.request", "body": piece, "more_body": not self.body_ended}

    def send(self, message: Any) -> Awaitable[None]:
        """Done when the client takes more. What nobody is there to hear is dropped."""
        if self.is_over or self._line.is_lost:
            return AT_ONCE
        if message["type"] == "http.response.start":
            return self._begin(message["status"], message.get("headers", ()))
        return self._go_on(message.get("body", b""), is_last=not message.get("more_body", False))

    def _begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> Awaitable[None]:
        names = dict(headers)
        if not OURS.isdisjoint(names):
            headers = [pair for pair in headers if pair[0] not in OURS]
        end = b"" if b"date" in names else self._line.date_line()
        length = names.get(b"content-length")
        is_old = self.scope["http_version"] == "1.0"
        self._is_bodiless = status in NO_BODY or self.scope["method"] == "HEAD"
        if length is not None:
            self._left = int(length)
        elif not self._is_bodiless and not is_old:
            self._is_chunked = True
            end += b"transfer-encoding: chunked\r\n"
        elif not self._is_bodiless:
            self._keep = False  # its body ends with the connection
        if not self._keep:
            end += b"connection: close\r\n"
        elif is_old:
            end += b"connection: keep-alive\r\n"
        self._head = reply_head(status, headers, end)
        self._status = status
        if length is not None or self._is_bodiless:
            return AT_ONCE
        head, self._head = self._head, None
        return self._line.write(head)  # what comes behind it may take its time

    def _go_on(self, piece: bytes, *, is_last: bool) -> Awaitable[None]:
        if self._is_bodiless:
            piece = b""
        elif self._left is not None:
            self._left -= len(piece)
            if self._left < 0 or (is_last and self._left):
                return self._break_off("its length was said wrong")
        done = self._write(piece, is_last)
        if is_last:
            self.is_over = True
            self._line.replied(keep=self._keep and self.body_ended)
        return done

    def _write(self, piece: bytes, is_last: bool) -> Awaitable[None]:
        head, self._head = self._head, None
        if self._is_chunked:
            end = b"0\r\n\r\n" if is_last else b""
            return self._line.write(b"%x\r\n" % len(piece), piece, b"\r\n" + end) if piece else self._line.write(end)
        if head is None:
            return self._line.write(piece) if piece else AT_ONCE
        return self._line.write(head + piece) if len(piece) <= JOINED_BYTES else self._line.write(head, piece)

    def _break_off(self, why: str) -> Awaitable[None]:
        log.error("a reply was broken off: %s", why)
        self.is_over = True
        self._line.break_off(is_framed=self._is_framed)
        return AT_ONCE

    @property
    def _is_framed(self) -> bool:
        return self._is_chunked or self._left is not None
