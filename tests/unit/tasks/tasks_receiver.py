"""Somebody who wants to be told: a real server on loopback, which the rest of the world knows by public addresses."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address

from poold.egress.addresses import Address
from poold.tasks.posting import Ways

PUBLIC = ip_address("93.184.216.34")
OK = b"HTTP/1.1 204 No Content\r\n\r\n"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Receiver:
    """What it was told, and what it answers."""

    answer: bytes | Talk = OK
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0
    names: dict[str, Sequence[str]] = field(default_factory=dict)  # what a resolver says of it
    dialled: list[str] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not isinstance(self.answer, bytes):
                await self.answer(reader, writer)
                return
            self.requests.append(await request(reader))
            writer.write(self.answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def resolve(self, name: str) -> Sequence[Address]:
        if name not in self.names:
            raise socket.gaierror(-2, "Name or service not known")
        return [ip_address(text) for text in self.names[name]]

    async def connect(self, address: Address, port: int) -> socket.socket:
        self.dialled.append(f"{address}:{port}")
        if str(address) in self.dead:
            raise ConnectionRefusedError(111, "Connection refused")
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        return sock

    def ways(self, **told: object) -> Ways:
        usual = {"resolve": self.resolve, "connect": self.connect, "is_own": lambda _: False}
        return Ways(**{**usual, **told})  # type: ignore[arg-type]


async def request(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    return head[0], headers, await reader.readexactly(int(headers["Content-Length"]))


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver(names={"hooks.example.com": [str(PUBLIC)]})
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver
