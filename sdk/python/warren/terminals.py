"""A terminal in a sandbox over a WebSocket, once for threads and once for asyncio.

Binary frames are bytes, both ways; text frames are JSON: the start, the end, and changes of size.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from websockets.asyncio import client as aio
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync import client as sync

from warren.calls import Reply, refusal
from warren.config import Config
from warren.errors import ProtocolError, StreamBroken, Unreachable
from warren.flows import error_within
from warren.lines import headers, tls
from warren.models import Exited, Ticket
from warren.shared_tls import SharedTls

OPEN_S = 30.0
CLOSE_S = 1.0  # the other side's goodbye is not worth a longer wait
MAX_FRAME_BYTES = 16 << 20
PING_S = 20.0


@dataclass(frozen=True)
class Door:
    """Where a terminal is opened, and what opens it."""

    url: str
    headers: dict[str, str] = field(repr=False)
    tls: ssl.SSLContext | None = None
    socket: str | None = None  # a unix socket in place of the network

    def options(self) -> dict[str, Any]:
        return {
            "additional_headers": self.headers,
            "ssl": self.tls,
            "compression": None,
            "max_size": MAX_FRAME_BYTES,
            "open_timeout": OPEN_S,
            "close_timeout": CLOSE_S,
            "ping_interval": PING_S,
            "user_agent_header": None,
        } | ({"proxy": None} if self.socket is None else {})


def through_gateway(config: Config, path: str, query: tuple[tuple[str, str], ...]) -> Door:
    base = "ws://localhost" if config.socket else "ws" + config.url.removeprefix("http")
    context = tls(config) if base.startswith("wss:") else None
    return Door(f"{base}{path}?{urlencode(query)}", headers(config), context, config.socket)


def direct(ticket: Ticket, query: tuple[tuple[str, str], ...]) -> Door:
    """To the host itself. The ticket goes in a header: addresses end up in logs."""
    scheme = urlsplit(ticket.url).scheme
    if scheme not in ("ws", "wss"):
        raise ProtocolError(f"a terminal's address begins with wss://, got {scheme!r}")
    context = ssl.create_default_context(cadata=ticket.ca) if scheme == "wss" else None
    return Door(f"{ticket.url}?{urlencode(query)}", {"Warren-Ticket": ticket.ticket}, context)


class _Connection(sync.ClientConnection):
    """One that a thread of its own reads."""

    def __init__(self, sock: Any, protocol: Any, **options: Any) -> None:
        shared: Any = SharedTls(sock) if isinstance(sock, ssl.SSLSocket) else sock
        super().__init__(shared, protocol, **options)


class _Ends:
    """What was told of the terminal's beginning and end."""

    def __init__(self) -> None:
        self.pid = 0
        self.exited: Exited | None = None
        self.is_left = False

    def started(self, message: str | bytes) -> None:
        told = _told(message)
        if told.get("type") != "start":
            raise error_within(told.get("error") or {})
        self.pid = int(told.get("pid", 0))

    def told(self, message: str) -> None:
        told = _told(message)
        if told.get("type") == "exit":
            self.exited = Exited(told.get("exit_code"), told.get("signal"), int(told.get("duration_ms", 0)))
        elif told.get("type") == "error":
            raise error_within(told.get("error") or {})

    def check(self) -> None:
        """It is over: because it ended, or because we left. Anything else is a break."""
        if self.exited is None and not self.is_left:
            raise StreamBroken("the connection to the terminal was lost; the shell lives on")


class Terminal:
    """An open terminal. Iterate over it for what it shows; write to it from the same or another thread.

    Leaving detaches: the program goes on, and `sandbox.terminal(pid=…)` finds it again.
    """

    def __init__(self, connection: sync.ClientConnection, ends: _Ends, hang_up: contextlib.ExitStack) -> None:
        self._connection, self._ends, self._hang_up = connection, ends, hang_up

    @property
    def pid(self) -> int:
        return self._ends.pid

    @property
    def exited(self) -> Exited | None:
        """How it ended, once it has."""
        return self._ends.exited

    def write(self, data: bytes) -> None:
        with _closed():
            self._connection.send(data)

    def resize(self, cols: int, rows: int) -> None:
        with _closed():
            self._connection.send(_resize(cols, rows))

    def __iter__(self) -> Iterator[bytes]:
        with contextlib.suppress(ConnectionClosed):
            for message in self._connection:
                if isinstance(message, bytes):
                    yield message
                    continue
                self._ends.told(message)
                if self.exited is not None:
                    break
        self._ends.check()

    def close(self) -> None:
        self._ends.is_left = True
        self._hang_up.close()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncTerminal:
    """As `Terminal`, for asyncio."""

    def __init__(self, connection: aio.ClientConnection, ends: _Ends) -> None:
        self._connection, self._ends = connection, ends

    @property
    def pid(self) -> int:
        return self._ends.pid

    @property
    def exited(self) -> Exited | None:
        return self._ends.exited

    async def write(self, data: bytes) -> None:
        with _closed():
            await self._connection.send(data)

    async def resize(self, cols: int, rows: int) -> None:
        with _closed():
            await self._connection.send(_resize(cols, rows))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with contextlib.suppress(ConnectionClosed):
            async for message in self._connection:
                if isinstance(message, bytes):
                    yield message
                    continue
                self._ends.told(message)
                if self.exited is not None:
                    break
        self._ends.check()

    async def close(self) -> None:
        self._ends.is_left = True
        await self._connection.close()

    async def __aenter__(self) -> "AsyncTerminal":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def open_terminal(door: Door) -> Terminal:
    """Connect, and hear that there is a program. If this raises, nothing stays open."""
    ends = _Ends()
    with contextlib.ExitStack() as stack, _refused(door.url):
        connection = stack.enter_context(
            sync.unix_connect(door.socket, door.url, **door.options())
            if door.socket
            else sync.connect(door.url, create_connection=_Connection, **door.options())
        )
        ends.started(connection.recv(OPEN_S))
        return Terminal(connection, ends, stack.pop_all())


async def open_async_terminal(door: Door) -> AsyncTerminal:
    ends = _Ends()
    with _refused(door.url):
        connection = await (
            aio.unix_connect(door.socket, door.url, **door.options())
            if door.socket
            else aio.connect(door.url, **door.options())
        )
    try:
        with _refused(door.url):
            async with asyncio.timeout(OPEN_S):
                ends.started(await connection.recv())
    except BaseException:
        await connection.close()
        raise
    return AsyncTerminal(connection, ends)


def _told(message: str | bytes) -> dict[str, Any]:
    try:
        told = json.loads(message)
    except ValueError:
        raise ProtocolError("the terminal's first words are not Warren's") from None
    return told if isinstance(told, dict) else {}


def _resize(cols: int, rows: int) -> str:
    return json.dumps({"type": "resize", "cols": cols, "rows": rows})


@contextlib.contextmanager
def _refused(url: str) -> Iterator[None]:
    where = urlsplit(url).netloc
    try:
        yield
    except InvalidStatus as error:
        answer = error.response
        raise refusal(Reply(answer.status_code, answer.headers, bytes(answer.body or b""))) from None
    except InvalidHandshake as error:
        raise ProtocolError(f"what answers at {where} opens no terminal: {error}") from None
    except ConnectionClosed as error:
        raise Unreachable(f"{where} hung up before there was a terminal ({error})") from None
    except TimeoutError:
        raise Unreachable(f"{where} opened no terminal within {OPEN_S:g} s") from None
    except OSError as error:
        raise Unreachable(f"{where} cannot be reached ({error})") from None


@contextlib.contextmanager
def _closed() -> Iterator[None]:
    try:
        yield
    except ConnectionClosed:
        raise StreamBroken("the terminal is closed") from None
