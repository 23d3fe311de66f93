"""The gateway's server in this process, for the tests of what goes through it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from contract.errors import WarrenError
from gateway.server import Server

App = Callable[[Any, Any, Any], Awaitable[None]]


class Served:
    """A server in front of an application, and what it was told of."""

    def __init__(self, port: int, server: Server, refusals: list[tuple[str, WarrenError]]) -> None:
        self.port = port
        self.server = server
        self._refusals = refusals

    @property
    def codes(self) -> list[str]:
        return [error.code for _, error in self._refusals]


@contextlib.asynccontextmanager
async def serving(app: App) -> AsyncIterator[Served]:
    """Serve `app` on a port of loopback during the block."""
    refusals: list[tuple[str, WarrenError]] = []
    server = Server(app, refusing(refusals))
    port = await server.listen("127.0.0.1", 0)
    try:
        async with asyncio.timeout(20):
            yield Served(port, server, refusals)
    finally:
        await server.close(1.0)


@contextlib.asynccontextmanager
async def served(app: App) -> AsyncIterator[int]:
    """As `serving`, for who needs the port alone."""
    async with serving(app) as found:
        yield found.port


def refusing(refusals: list[tuple[str, WarrenError]]) -> Callable[[str, WarrenError], tuple[list[Any], bytes]]:
    """What a server is given to be told of what it refuses: it is remembered, and its code is the reply."""

    def refused(address: str, error: WarrenError) -> tuple[list[Any], bytes]:
        refusals.append((address, error))
        return [(b"content-length", b"%d" % len(error.code))], error.code.encode()

    return refused


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
