"""A small server that speaks as the metadata service of an EC2 instance does: a token first, then questions."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from poold.drain.imds import ACTION, REBALANCE, ImdsPlace
from tests.ports import free_port


@dataclass
class ImdsServer:
    """What it says, and what it was asked."""

    place: ImdsPlace
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)  # by path; else 404
    tokens: set[bytes] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    raw: bytes | None = None  # it says this and nothing else
    stalls: bool = False

    def notice(self, body: bytes) -> None:
        self.answers[ACTION] = (200, body)

    def rebalance(self, body: bytes) -> None:
        self.answers[REBALANCE] = (200, body)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            while self.stalls and not reader.at_eof():
                await asyncio.sleep(0.01)
            writer.write(self.raw if self.raw is not None else self._reply(head))
            await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    def _reply(self, head: bytes) -> bytes:
        first, *lines = head.decode().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        self.asked.append(f"{method} {path}")
        status, body = self._answer(method, path, headers)
        return b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\nServer: EC2ws\r\n\r\n%b" % (status, len(body), body)

    def _answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        if path == "/latest/api/token":
            ttl = headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
            if method != "PUT" or not ttl.isdigit() or not 1 <= int(ttl) <= 21_600:
                return 400, b""
            token = secrets.token_urlsafe(40).encode()
            self.tokens.add(token)
            return 200, token
        if method != "GET" or headers.get("x-aws-ec2-metadata-token", "").encode() not in self.tokens:
            return 401, b""
        return self.answers.get(path, (404, b"<not found>"))


@contextlib.asynccontextmanager
async def open_imds() -> AsyncIterator[ImdsServer]:
    server = ImdsServer(ImdsPlace("127.0.0.1", free_port()))
    async with await asyncio.start_server(server.serve, server.place.host, server.place.port):
        yield server
