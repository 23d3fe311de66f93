"""A place to see previews in: a gateway with a sandbox, the services in it, and whoever asks for them."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.gateway.cluster import Cluster, Program, ask

LIMIT_S = 20.0
DOMAIN = "box.test"
Serve = Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Asked:
    line: str
    headers: dict[str, str]
    reader: asyncio.StreamReader


@dataclass
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    is_whole: bool

    def __getitem__(self, name: str) -> str:
        return dict(self.headers)[name]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Place:
    """A gateway with one sandbox, and the owner's key."""

    cluster: Cluster
    gateway: Program
    key: str
    stranger: str
    sandbox: str

    def host(self, port: int) -> str:
        return f"{port}-{self.sandbox}.{DOMAIN}"

    def api(self, method: str, path: str, body: object = None, key: str | None = None) -> Any:
        return ask(self.gateway.port, method, f"/v1/sandboxes/{self.sandbox}{path}", body, key or self.key)

    def link(self, port: int, **body: object) -> str:
        reply = self.api("POST", f"/ports/{port}/link", body)
        assert reply.status == 200, reply
        url: str = reply.json["url"]
        return url

    async def cookie(self, port: int) -> str:
        """What a browser sends after a link was opened."""
        opened = await self.of(port, "/" + self.link(port).partition(DOMAIN)[2].partition("/")[2])
        return opened["set-cookie"].partition(";")[0]

    async def get(self, target: str = "/", method: str = "GET", body: bytes = b"", **headers: str) -> Reply:
        """One request on a connection of its own, read to its end or its cut."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {target} HTTP/1.1", "Connection: close", *(f"{name}: {told[name]}" for name in told)]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        try:
            async with asyncio.timeout(LIMIT_S):
                writer.write("\r\n".join([*lines, "", ""]).encode() + body)
                return await read_reply(reader, method)
        finally:
            writer.close()

    async def of(self, port: int, target: str = "/", **more: Any) -> Reply:
        return await self.get(target, Host=self.host(port), **more)

    async def as_owner(self, port: int, target: str = "/", **more: Any) -> Reply:
        return await self.of(port, target, Authorization=f"Bearer {self.key}", **more)


async def read_reply(reader: asyncio.StreamReader, method: str) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in head[1:] if line)]
    raw = await reader.read()
    known = dict(headers)
    if known.get("transfer-encoding") == "chunked":
        body, is_whole = b"", raw.endswith(b"0\r\n\r\n")
        while found := re.match(rb"([0-9a-fA-F]+)\r\n", raw):
            size = int(found[1], 16)
            body, raw = body + raw[found.end() : found.end() + size], raw[found.end() + size + 2 :]
    else:
        body, is_whole = raw, method == "HEAD" or len(raw) == int(known.get("content-length", len(raw)))
    return Reply(int(head[0].split()[1]), headers, body, is_whole)


@contextlib.asynccontextmanager
async def service(serve: Serve) -> AsyncIterator[int]:
    """A service on loopback that answers each request on a connection by `serve`."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                    pairs = (each.partition(": ") for each in lines if each)
                    await serve(Asked(line, {name.lower(): value for name, _, value in pairs}, reader), writer)
                    await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answering(body: bytes = b"hello", *headers: str, status: str = "200 OK") -> Serve:
    async def serve(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    return serve


async def mirror(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Says what it was asked."""
    body = json.dumps({"line": asked.line, **asked.headers}).encode()
    await answering(body)(asked, writer)
