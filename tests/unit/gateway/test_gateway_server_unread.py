"""Clients of the gateway's server that ask and do not read, or read slowly."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from flow_servers import serving

from gateway.server import connection, server

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
PIECE = bytes(400_000)
LONG = bytes(8 << 20)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def say(send: Any, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def long(scope: Any, receive: Any, send: Any) -> None:
    await say(send, b"last" if scope["path"] == "/last" else LONG)


@asynccontextmanager
async def asking(port: int) -> AsyncIterator[Streams]:
    """A client that takes little at a time, and only if it is read from."""
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=plain, limit=32 << 10)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is looked at often, and patience is short."""
    monkeypatch.setattr(server, "EVERY_S", 0.05)
    for name, limit_s in (("HEAD_S", 0.3), ("LINGER_S", 0.2), ("IDLE_S", 0.5), ("UNREAD_S", 0.5)):
        monkeypatch.setattr(connection, name, limit_s)


async def test_who_asks_and_does_not_read_is_answered_when_it_reads() -> None:
    begun = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal begun
        begun += 1
        await say(send, b"last" if scope["path"] == "/last" else PIECE)

    async with serving(app) as served, asking(served.port) as (reader, writer):
        for _ in range(30):
            writer.write(GET)
            await asyncio.sleep(0.01)
        writer.write(LAST)
        await asyncio.sleep(0.3)
        assert begun < 20
        (line,) = served.server._connections
        assert isinstance(line, connection.Connection)
        assert line.transport is not None
        assert line.transport.get_write_buffer_size() < connection.WRITE_HIGH_WATER + 2 * len(PIECE)
        said = 0
        while data := await reader.read(1 << 20):
            said += len(data)
        assert begun == 31
        assert said > 30 * len(PIECE)
        assert served.codes == []


async def test_a_body_that_is_said_back_goes_on_when_its_sender_reads() -> None:
    size = 32 << 20

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        more = True
        while more:
            message = await receive()
            more = message["more_body"]
            await send({"type": "http.response.body", "body": message["body"], "more_body": more})

    async with serving(app) as served, asking(served.port) as (reader, writer):
        writer.write(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
        await asyncio.sleep(0.3)
        assert writer.transport.get_write_buffer_size() > 0  # it has to wait
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(size) == bytes(size)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "asked", [GET, GET + GET, LAST.replace(b"/last", b"/"), GET + b"GET / HT", GET + b"no\r\n\r\n"]
)
async def test_who_takes_nothing_of_a_reply_is_let_go(asked: bytes) -> None:
    async with serving(long) as served, asking(served.port) as (_, writer):
        writer.write(asked)
        await asyncio.sleep(0.3)
        assert len(served.server._connections) == 1
        await asyncio.sleep(1.5)
        assert not served.server._connections


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("asked", [GET + LAST, LAST.replace(b"/last", b"/")], ids=["kept", "closed"])
async def test_who_reads_slowly_has_all_of_it(asked: bytes) -> None:
    async with serving(long) as served, asking(served.port) as (reader, writer):
        writer.write(asked)
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(64):
            await reader.readexactly(len(LONG) // 64)
            await asyncio.sleep(0.03)
        assert (await reader.read()).endswith(b"last" if asked.endswith(LAST) else b"")


@pytest.mark.usefixtures("quick")
async def test_a_head_that_could_not_come_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_S", 10.0)
    async with serving(long) as served, asking(served.port) as (reader, writer):
        writer.write(GET + LAST[:20])
        await asyncio.sleep(1.0)
        writer.write(LAST[20:])
        assert (await reader.read(15)) == b"HTTP/1.1 200 OK"
        said = b""
        while data := await reader.read(1 << 20):
            said = said[-100:] + data
        assert said.endswith(b"last")
        assert served.codes == []
