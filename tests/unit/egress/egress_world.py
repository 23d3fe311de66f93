"""A proxy on loopback, with a small world around it: names, addresses that lead to servers of the tests, and poold.

What the proxy is given instead of the real thing: how names are resolved, how an address is connected to, and where a
connection was going before it was redirected.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import orjson

from contract.network import HostRule, Limits, NetRule
from poold.egress.addresses import Address
from poold.egress.policy import Level, Policy
from poold.egress.proxy.control import Control
from poold.egress.proxy.dial import Dialer
from poold.egress.proxy.door import Door, Sockets

PUBLIC = "93.184.216.34"
OTHER = "93.184.216.35"
LIMIT_S = 10.0

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def hosts(*names: str, ports: tuple[int, ...] = (80, 443), **more: Any) -> Policy:
    """A policy of one level that allows these names."""
    return Policy(levels=(Level("sandbox", hosts=tuple(HostRule(name, ports) for name in names)),), **more)


def nets(*rules: tuple[str, int], **more: Any) -> Policy:
    return Policy(levels=(Level("sandbox", nets=tuple(NetRule(*rule) for rule in rules)),), **more)


def client_hello(name: str | None) -> bytes:
    """What a real client says first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    sent = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return sent.read()


class Client:
    """A guest's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read(self, count: int) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.readexactly(count)

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.readuntil(end)

    async def rest(self) -> bytes:
        """All that comes until the other side ends. A reset is b"reset" at the end."""
        got = b""
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    piece = await self.reader.read(65536)
                except ConnectionError:
                    return got + b"reset"
                if not piece:
                    return got
                got += piece

    async def answer(self) -> tuple[bytes, bytes]:
        """One answer with a length: its head and its body."""
        head = await self.until(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        return head, await self.read(length)


class Poold:
    """The other side of the control connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.heard: list[dict[str, Any]] = []
        self._number = 0

    async def next(self, told: str) -> dict[str, Any]:
        """The next message of this kind that was not asked for yet."""
        for index, message in enumerate(self.heard):
            if message["told"] == told:
                return self.heard.pop(index)
        async with asyncio.timeout(LIMIT_S):
            while True:
                line = await self.reader.readline()
                if not line:
                    raise ConnectionError("the proxy has hung up")
                message = orjson.loads(line)
                if message["told"] == told:
                    return dict(message)
                self.heard.append(message)

    async def row(self, **wanted: Any) -> dict[str, Any]:
        """The next row; it has what is wanted."""
        row = await self.next("row")
        assert {name: row[name] for name in wanted} == wanted, row
        return row

    async def rule(self, policy: Policy, sandbox: str | None = "sb-a") -> None:
        self._number += 1
        await self.say(do="rule", number=self._number, sandbox=sandbox, policy=policy.view())
        assert (await self.next("ruled"))["number"] == self._number

    async def say(self, **message: Any) -> None:
        self.writer.write(orjson.dumps(message) + b"\n")
        await self.writer.drain()


class World:
    def __init__(self, folder: Path) -> None:
        self.names: dict[str, list[str]] = {"allowed.example": [PUBLIC], "other.example": [OTHER]}
        self.places: dict[tuple[str, int], int] = {}  # where an address at a port really is
        self.own: set[str] = set()
        self.destination: tuple[str, int] | None = None  # of the next connection that is redirected
        self.dialled: list[tuple[str, int]] = []
        self.resolved: list[str] = []
        self.before_connect: Callable[[], Awaitable[None]] | None = None
        self.path = folder / "control"
        self.stack = contextlib.AsyncExitStack()
        self.is_over = asyncio.Event()

    async def start(self) -> None:
        self.sockets = Sockets(listener(), listener(), datagrams(), listener(), None)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.control = Control(self.listener, 7, 4711, self._end, alike_s=0.05)
        dialer = Dialer(self._resolve, self._connect, lambda address: str(address) in self.own)
        self.door = Door(self.sockets, self.control.gate, dialer, lambda _: self.destination)
        self.control.start()
        await self.stack.enter_async_context(self.door)

    async def stop(self) -> None:
        await self.stack.aclose()
        self.control.stop()
        for sock in (self.sockets.explicit, self.sockets.transparent, self.sockets.dns_tcp, self.listener):
            sock.close()
        await asyncio.sleep(0)

    def _end(self) -> None:
        self.door.end()
        self.is_over.set()

    async def _resolve(self, name: str) -> list[Address]:
        self.resolved.append(name)
        await asyncio.sleep(0)
        if name not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [ip_address(text) for text in self.names[name]]

    async def _connect(self, address: Address, port: int) -> socket.socket:
        self.dialled.append((str(address), port))
        if self.before_connect is not None:
            await self.before_connect()
        place = self.places.get((str(address), port))
        if place is None:
            raise ConnectionRefusedError(111, "Connection refused")
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", place))
        except BaseException:
            sock.close()
            raise
        return sock

    async def poold(self) -> Poold:
        reader, writer = await asyncio.open_unix_connection(str(self.path), limit=1 << 22)
        self.stack.push_async_callback(hang_up, writer)
        poold = Poold(reader, writer)
        hello = await poold.next("hello")
        assert (hello["version"], hello["slot"], hello["pid"]) == (1, 7, 4711)
        return poold

    async def explicit(self) -> Client:
        return await self._client(self.sockets.explicit)

    async def transparent(self, address: str, port: int) -> Client:
        self.destination = (address, port)
        return await self._client(self.sockets.transparent)

    async def _client(self, to: socket.socket) -> Client:
        reader, writer = await asyncio.open_connection(*to.getsockname(), limit=1 << 20)
        self.stack.push_async_callback(hang_up, writer)
        return Client(reader, writer)

    async def serve(self, handler: Handler, address: str = PUBLIC, port: int = 80) -> None:
        """A server in the world, at this address and port."""

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await handler(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                await hang_up(writer)

        server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 20)
        self.stack.callback(server.close)
        self.places[address, port] = server.sockets[0].getsockname()[1]


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(1):
            await writer.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


class Web:
    """A server of plain HTTP that remembers the requests as they came, and answers each in the same way."""

    def __init__(
        self, answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", *, closes: bool = False
    ) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.answer = answer
        self.closes = closes

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            self.heads.append(head)
            self.bodies.append(await self._body(reader, head.lower()))
            writer.write(self.answer)
            await writer.drain()
            if self.closes:
                return

    async def _body(self, reader: asyncio.StreamReader, head: bytes) -> bytes:
        if b"transfer-encoding: chunked" in head:
            body = b""
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
            return body
        for line in head.split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return await reader.readexactly(int(line.split(b":")[1]))
        return b""


def listener() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(512)
    return sock


def datagrams() -> socket.socket:
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return sock


def limited(policy: Policy, **limits: Any) -> Policy:
    return replace(policy, limits=replace(Limits(), **limits))


@contextlib.asynccontextmanager
async def open_world(folder: Path) -> AsyncIterator[World]:
    world = World(folder)
    await world.start()
    try:
        yield world
    finally:
        await world.stop()
