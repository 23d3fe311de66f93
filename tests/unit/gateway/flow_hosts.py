"""Hosts for the tests of the data path: real sockets that say what a test tells them to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

Talk = Callable[["Peer"], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@dataclass
class Peer:
    """One connection, as the host sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def until_gone(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.gone.set()


@dataclass
class Scripted:
    address: str
    peers: list[Peer] = field(default_factory=list)


@contextlib.asynccontextmanager
async def scripted_host(talk: Talk, tls: object = None) -> AsyncIterator[Scripted]:
    """A host whose every connection is a call of `talk`."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, len(host.peers))
        host.peers.append(peer)
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await talk(peer)
        except (asyncio.IncompleteReadError, ConnectionError):
            peer.gone.set()
        finally:
            tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)  # type: ignore[arg-type]
    port = server.sockets[0].getsockname()[1]
    host = Scripted(f"{'http' if tls is None else 'https'}://127.0.0.1:{port}")
    try:
        yield host
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(list(tasks), timeout=2)


def always(*answer: bytes) -> Talk:
    """Say the same to every request, on one connection after the other request."""

    async def talk(peer: Peer) -> None:
        while True:
            await peer.head()
            await peer.say(*answer)

    return talk


def once(*answer: bytes) -> Talk:
    """Say this to the first request, and hang up."""

    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.say(*answer)

    return talk
