"""One WebSocket of a client, as ASGI has it. The protocol is that of the `websockets` package, without its I/O."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from typing import Any, Protocol, cast

from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from contract.errors import WarrenError
from gateway.errors import BadFraming
from gateway.server.wire import reply_head
from gateway.upstream.later import AT_ONCE
from gateway.upstream.parts import header_block

MAX_MESSAGE_BYTES = 16 << 20
MAX_EARLY_BYTES = 64 << 10  # of what a client sends before it was accepted
MESSAGES_WAITING = 2  # for whoever receives; then the client has to wait
CLOSE_S = 2.0  # for the client's farewell
NO_CODE = 1005
LOST = 1006
HANDSHAKE = (b"host", b"connection", b"upgrade", b"origin")

quiet = logging.getLogger("gateway.websockets")
quiet.setLevel(logging.WARNING)


class Line(Protocol):
    """The connection on which the WebSocket was asked for."""

    transport: asyncio.Transport | None


class Serving(Protocol):
    """What all connections share."""

    loop: asyncio.AbstractEventLoop
    now_s: float
    date: bytes

    def closed(self, connection: Any) -> None: ...

    def refused(self, address: str, error: WarrenError) -> tuple[list[tuple[bytes, bytes]], bytes]: ...


class Socket(asyncio.Protocol):
    """Belongs to one task that talks, and to the loop that feeds it."""

    is_idle = False
    is_over = False  # until it was dropped

    def __init__(self, serving: Serving, line: Line, scope: dict[str, Any]) -> None:
        given = [value for name, value in scope["headers"] if name == b"sec-websocket-protocol"]
        scope["subprotocols"] = [name.strip() for name in b",".join(given).decode("latin-1").split(",") if name.strip()]
        self.scope = scope
        self.task: asyncio.Task[None] | None = None  # of whoever talks
        self._serving = serving
        self._transport = line.transport
        self._protocol = ServerProtocol(max_size=MAX_MESSAGE_BYTES, logger=quiet)
        self._answer: Response | None = None  # to the handshake, until the application has taken or refused it
        self._early = b""
        self._inbox: deque[Any] = deque([{"type": "websocket.connect"}])
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._begun = bytearray()  # of a message that comes in several frames, however many: empty ones take no room
        self._is_text = False
        self._refusal: Any = None  # the head of an HTTP reply in place of a WebSocket
        self._closing_s: float | None = None
        self.is_lost = False

    def own_scope(self) -> dict[str, Any]:
        return self.scope

    def begin(self, rest: bytes) -> bool:
        """Whether the handshake is right. If not, the client was told so."""
        kept = [pair for pair in self.scope["headers"] if pair[0] in HANDSHAKE or pair[0].startswith(b"sec-websocket-")]
        self._protocol.receive_data(b"GET / HTTP/1.1\r\n" + header_block(kept) + b"\r\n")
        asked = next((event for event in self._protocol.events_received() if isinstance(event, Request)), None)
        self._answer = None if asked is None else self._protocol.accept(asked)
        self._early = rest
        if self._answer is not None and self._answer.status_code == 101:
            return True
        error = BadFraming(f"this is no handshake of a WebSocket: {self._protocol.handshake_exc}")
        client = self.scope["client"]
        headers, body = self._serving.refused(client[0] if client else "", error)
        self._say_no(error.status, headers, body)
        return False

    # What the event loop says.

    def data_received(self, data: bytes) -> None:
        if self._answer is not None:
            self._early += data
            if len(self._early) > MAX_EARLY_BYTES:
                self.abort()
            return
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        self._flush()
        self._heed()

    def eof_received(self) -> None:
        if self._answer is None:
            self._protocol.receive_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._serving.closed(self)
        self._transport = None
        self.resume_writing()
        self._wake()

    def pause_writing(self) -> None:
        self._room = self._serving.loop.create_future()
        self._heed()

    def resume_writing(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None
        self._heed()

    # What the application does.

    async def receive(self) -> Any:
        """The next message of the client; at the end how it left."""
        while not self._inbox and not self._is_closed:
            self._waiter = self._serving.loop.create_future()
            await self._waiter
        if not self._inbox:
            said = self._protocol.close_rcvd
            code, reason = (LOST, "") if said is None else (said.code, said.reason)
            return {"type": "websocket.disconnect", "code": code, "reason": reason}
        message = self._inbox.popleft()
        self._heed()
        return message

    def send(self, message: Any) -> Awaitable[None]:
        """Done when the client takes more. What nobody is there to hear is dropped."""
        if self.is_lost:
            return AT_ONCE
        kind = message["type"]
        if self._answer is not None:
            self._open_or_refuse(kind, message)
        elif kind == "websocket.send" and self._protocol.state is State.OPEN:
            text = message.get("text")
            if text is not None:
                self._protocol.send_text(text.encode())
            else:
                self._protocol.send_binary(message["bytes"])
        elif kind == "websocket.close":
            self._close(message.get("code", CloseCode.NORMAL_CLOSURE), message.get("reason") or "")
        self._flush()
        return AT_ONCE if self._room is None else self._room

    def drop(self) -> None:
        """Whoever talked is gone: an end without a word would look like a proper one."""
        if self._answer is not None:
            self._say_no(500, [], b"")
        elif not self.is_lost:
            self._close(CloseCode.INTERNAL_ERROR, "")
            self._flush()

    # Ends.

    def finish(self) -> None:
        self._close(CloseCode.GOING_AWAY, "")
        self._flush()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def look(self, now_s: float) -> None:
        """Once a second: is it too late for something?"""
        if self._closing_s is not None and now_s - self._closing_s > CLOSE_S:
            self.abort()

    @property
    def _is_closed(self) -> bool:
        return self.is_lost or self._protocol.close_rcvd is not None or self._closing_s is not None

    def _heed(self) -> None:
        """Hear the client, unless its messages wait for somebody or our answers (to its pings, too) wait for it."""
        if self._transport is None:
            return
        if len(self._inbox) > MESSAGES_WAITING or self._room is not None:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _take(self, frame: Frame) -> None:
        if frame.opcode in {Opcode.TEXT, Opcode.BINARY}:
            self._is_text = frame.opcode is Opcode.TEXT
        elif frame.opcode is not Opcode.CONT:
            self._wake()  # a farewell, or what the protocol answers itself
            return
        if not frame.fin:
            self._begun += frame.data
            return
        data = bytes(frame.data)
        if self._begun:
            data, self._begun = b"".join((self._begun, data)), bytearray()
        try:
            what = {"text": data.decode()} if self._is_text else {"bytes": data}
        except UnicodeDecodeError:
            self._protocol.fail(CloseCode.INVALID_DATA, "text that is not UTF-8")
            self._closing_s = self._serving.now_s
        else:
            self._inbox.append({"type": "websocket.receive", **what})
        self._wake()

    def _open_or_refuse(self, kind: str, message: Any) -> None:
        if kind == "websocket.accept":
            answer, self._answer = cast(Response, self._answer), None
            _add(answer.headers, message)
            self._protocol.send_response(answer)
            self._flush()
            early, self._early = self._early, b""
            if early:
                self.data_received(early)
        elif kind == "websocket.http.response.start":
            self._refusal = message
        elif kind == "websocket.http.response.body" and self._refusal is not None:
            self._say_no(self._refusal["status"], self._refusal["headers"], message.get("body", b""))
        else:
            self._say_no(403, [(b"content-length", b"0")], b"")

    def _say_no(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """An HTTP reply in place of a WebSocket, and the end of the connection."""
        self._answer = None
        self._closing_s = self._serving.now_s
        told = [pair for pair in headers if pair[0] != b"content-length"]
        told.append((b"content-length", b"%d" % len(body)))
        if self._transport is not None:
            self._transport.write(reply_head(status, told, self._serving.date + b"connection: close\r\n") + body)
            self._transport.close()
        self._wake()

    def _close(self, code: int, reason: str) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code if code != NO_CODE else None, reason if code != NO_CODE else "")
        if self._closing_s is None:
            self._closing_s = self._serving.now_s
        self._wake()

    def _flush(self) -> None:
        if self._transport is None:
            return
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._transport.close()  # the farewells are said
                return

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _add(headers: Headers, message: Any) -> None:
    """What the application says in its acceptance."""
    for name, value in message.get("headers", ()):
        headers[name.decode("latin-1")] = value.decode("latin-1")
    if message.get("subprotocol"):
        headers["Sec-WebSocket-Protocol"] = message["subprotocol"]
