"""A guest that does with each connection what the test says, and the link to it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from poold.link import Guest

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LIMIT_S = 10.0  # of any wait in a test


class Hostile:
    """Dialled any number of times; `accepted` counts, and `hung_up` is set when a connection was ended by poold."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._tasks: set[asyncio.Task[None]] = set()
        self.accepted = 0
        self.hung_up = asyncio.Event()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.link = Guest(self._dial, self.ended)

    async def _dial(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=theirs)
        self.accepted += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        return ours

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._script(reader, writer)
                self.hung_up.set()
                writer.close()
                await writer.wait_closed()
        finally:
            self.hung_up.set()
            writer.transport.abort()

    async def close(self) -> None:
        self.link.close()
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        for _ in range(3):  # the loop closes what was aborted in its next rounds
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def hostile(script: Script) -> AsyncIterator[Hostile]:
    """A guest that runs `script` on every connection, during the block."""
    guest = Hostile(script)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield guest
    finally:
        await guest.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """One request with its whole body: its first line, and the body as it came."""
    line, headers = await read_head(reader)
    if "content-length" in headers:
        return line, await reader.readexactly(int(headers["content-length"]))
    body = b""
    if "transfer-encoding" in headers:
        while not body.endswith(b"0\r\n\r\n"):
            body += await reader.readuntil(b"\r\n")
    return line, body


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *fields = head.removesuffix("\r\n\r\n").split("\r\n")
    return line, {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}


def answering(*pieces: bytes, then_close: bool = False) -> Script:
    """A script: to every request, these bytes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            await read_request(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if then_close:
                return

    return script


def answer(body: bytes = b"{}", status: str = "200 OK", *extra: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *extra]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def silence(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """A script: take everything, say nothing."""
    while await reader.read(1 << 16):
        pass
