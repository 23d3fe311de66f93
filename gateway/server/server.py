"""Listens, and has a task for every request. Once a second it looks at the clock for all connections together."""

import asyncio
import logging
import socket as sockets
import ssl
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any, cast

from contract.errors import WarrenError
from gateway.server.connection import Connection
from gateway.server.exchange import Exchange, Known
from gateway.server.websocket import Socket

log = logging.getLogger("gateway.server")

BACKLOG = 1024
MAX_CONNECTIONS = 20_000
HANDSHAKE_S = 10.0
EVERY_S = 1.0
MAX_KNOWN = 1024  # requests that are remembered by their bytes
MAX_KNOWN_BYTES = 2048
SILENCE_S = 30
QUESTION_S = 10

Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Refused = Callable[[str, WarrenError], tuple[list[tuple[bytes, bytes]], bytes]]


class Server:
    """Serves one ASGI application. `refused` is told of what never became a request, and says what its reply has.

    `shortcut` is asked first whether it takes a request; what it takes it replies to, or hands back with `answer`.
    """

    def __init__(self, app: Asgi, refused: Refused, shortcut: Callable[[Exchange], bool] | None = None) -> None:
        self._app = app
        self._shortcut = shortcut
        self.refused = refused
        self.loop = asyncio.get_running_loop()
        self.now_s = self.loop.time()
        self.date = b""
        self.known: dict[bytes, Known] = {}
        self._connections: set[Connection | Socket] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None, *, is_shared: bool = False) -> int:
        """Take connections from now on. The port, for who asked for any.

        One that `is_shared` may be taken by several processes at once, which get a part of the connections each.
        """
        self._look()
        self._listening = await self.loop.create_server(
            lambda: Connection(self),
            host,
            port,
            backlog=BACKLOG,
            reuse_port=is_shared,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else HANDSHAKE_S,
        )
        for socket in self._listening.sockets:
            _keep_awake(socket)  # what is accepted from it has that, too
        return int(self._listening.sockets[0].getsockname()[1])

    async def close(self, finish_s: float) -> None:
        """Take no more; what is under way has a moment to end, and is broken off then."""
        if self._listening is not None:
            self._listening.close()
        for connection in list(self._connections):
            if connection.is_idle:
                connection.finish()
        if self._answering:
            await asyncio.wait(self._answering, timeout=finish_s)
        for connection in list(self._connections):
            connection.abort()
        for task in self._answering:
            task.cancel()
        if self._answering:
            await asyncio.wait(self._answering)
        if self._timer is not None:
            self._timer.cancel()

    # What connections ask for.

    def know(self, data: bytes, scope: dict[str, Any]) -> None:
        """Most clients ask again with the same bytes. They mean the same again, and are not parsed twice."""
        if len(data) <= MAX_KNOWN_BYTES:
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()
            self.known[data] = Known(dict(scope), {})

    def opened(self, connection: Connection | Socket) -> bool:
        self._connections.add(connection)
        return len(self._connections) <= MAX_CONNECTIONS

    def closed(self, connection: Connection | Socket) -> None:
        self._connections.discard(connection)

    def take(self, exchange: Exchange) -> None:
        if self._shortcut is None or not self._shortcut(exchange):
            self._start(exchange)

    def answer(self, exchange: Exchange) -> "asyncio.Task[None]":
        return self._start(exchange)

    def upgrade(self, connection: Connection, scope: dict[str, Any], rest: bytes) -> asyncio.Protocol:
        socket = Socket(self, connection, scope)
        self.opened(socket)
        if socket.begin(rest):
            self._start(socket)
        return socket

    def _start(self, client: Exchange | Socket) -> "asyncio.Task[None]":
        client.scope = client.own_scope()
        task = self.loop.create_task(self._answer(client))
        client.task = task
        self._answering.add(task)
        return task

    async def _answer(self, client: Exchange | Socket) -> None:
        try:
            await self._app(client.scope, client.receive, client.send)
        except Exception:
            log.exception("a request was not answered")
        finally:
            if not client.is_over:
                client.drop()
            self._answering.discard(cast("asyncio.Task[None]", client.task))

    def _look(self) -> None:
        self.now_s = self.loop.time()
        self.date = f"date: {formatdate(usegmt=True)}\r\n".encode()
        for connection in list(self._connections):
            connection.look(self.now_s)
        self._timer = self.loop.call_later(EVERY_S, self._look)


def _keep_awake(listening: Any) -> None:
    """Clients that are cut off are found out by the kernel, a minute after their last word."""
    listening.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
    listening.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_KEEPIDLE, SILENCE_S)
    listening.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_KEEPINTVL, QUESTION_S)
    listening.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_KEEPCNT, 3)
