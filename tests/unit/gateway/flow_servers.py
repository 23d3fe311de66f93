"""A real Granian in this process, for the tests of what goes through it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from granian.constants import Interfaces
from granian.server.embed import Server

App = Callable[[Any, Any, Any], Awaitable[None]]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.asynccontextmanager
async def served(app: App) -> AsyncIterator[int]:
    """Serve `app` on a port of loopback during the block."""
    port = free_port()
    server = Server(
        app, address="127.0.0.1", port=port, interface=Interfaces.ASGINL, backpressure=1000, log_enabled=False
    )
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(10):
            await until_open(port)
            yield port
    finally:
        server.stop()  # type: ignore[no-untyped-call]
        await asyncio.wait([task], timeout=5)


async def until_open(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return


async def raw(port: int, *pieces: bytes) -> bytes:
    """What a server says to these bytes until it hangs up, or for half a second more than it has to say."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = b""
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        while True:
            async with asyncio.timeout(2):
                data = await reader.read(65536)
            if not data:
                return said
            said += data
    except (TimeoutError, ConnectionError):
        return said
    finally:
        writer.close()
