"""A proxy before an S3 server that does to requests what a bad day does: each fault has a method, all are logged.

It reads whole requests and whole replies, so it knows what it breaks: a reply is lost only after the work was done.
"""

import asyncio
import contextlib
import random
import re
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import StrEnum

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
_LENGTH = re.compile(rb"\r\ncontent-length:\s*([0-9]+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:\s*chunked", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nexpect:[^\r]*", re.IGNORECASE)
_KEPT = re.compile(rb"\r\nconnection:[^\r]*", re.IGNORECASE)
_BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Fault(StrEnum):
    NOT_DONE_503 = "answers 503 and does nothing"
    DONE_503 = "does it and answers 503"
    DROPPED = "hangs up before anything is done"
    LOST = "does it and hangs up"
    CUT = "does it and hangs up half-way in the reply"
    HANGING = "takes the request and never answers"


@dataclass
class Rule:
    """What happens to requests, how often, and to which."""

    fault: Fault
    share: float = 1.0
    times: int | None = None  # None: until `heal`
    matches: Callable[[str, str], bool] = lambda _method, _path: True


@dataclass(frozen=True)
class Seen:
    method: str
    path: str  # with its query
    status: int | None  # of the server's own reply; None: it was not asked
    fault: Fault | None


@dataclass
class S3Faults:
    """One server as others see it."""

    upstream: int  # a port of loopback
    port: int = 0  # where we listen
    seed: int = 0
    seen: list[Seen] = field(default_factory=list)
    on_put: Callable[[str, bytes, int], None] = lambda _path, _body, _status: None  # once the server has answered
    delay_s: float = 0.0
    _rules: list[Rule] = field(default_factory=list)
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    _healed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def slow(self, seconds: float) -> None:
        """Every request waits so long before the server hears of it."""
        self.delay_s = seconds

    def unavailable(self, *, share: float = 1.0, times: int | None = None, method: str = "", key: str = "") -> None:
        self._add(Fault.NOT_DONE_503, share, times, method, key)

    def done_but_unavailable(
        self, *, share: float = 1.0, times: int | None = None, method: str = "", key: str = ""
    ) -> None:
        self._add(Fault.DONE_503, share, times, method, key)

    def drop(self, *, share: float = 1.0, times: int | None = None, method: str = "", key: str = "") -> None:
        self._add(Fault.DROPPED, share, times, method, key)

    def lose_replies(self, *, share: float = 1.0, times: int | None = None, method: str = "", key: str = "") -> None:
        self._add(Fault.LOST, share, times, method, key)

    def cut_replies(self, *, share: float = 1.0, times: int | None = None, method: str = "", key: str = "") -> None:
        self._add(Fault.CUT, share, times, method, key)

    def hang(self, *, share: float = 1.0, times: int | None = None, method: str = "", key: str = "") -> None:
        self._healed.clear()
        self._add(Fault.HANGING, share, times, method, key)

    def heal(self) -> None:
        """A good day again. Who hangs is hung up on."""
        self._rules.clear()
        self.delay_s = 0.0
        self._healed.set()

    def requests(self, method: str = "", key: str = "") -> list[Seen]:
        """Those that came, of one method and with this in their path."""
        return [seen for seen in self.seen if method in ("", seen.method) and key in seen.path]

    def _add(self, fault: Fault, share: float, times: int | None, method: str, key: str) -> None:
        self._rules.append(Rule(fault, share, times, lambda m, path: method in ("", m) and key in path))

    def _fault(self, method: str, path: str) -> Fault | None:
        for rule in self._rules:
            if rule.times != 0 and rule.matches(method, path) and self._random.random() < rule.share:
                rule.times = None if rule.times is None else rule.times - 1
                return rule.fault
        return None

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: Reader, writer: Writer) -> bool:
        """One request. Whether the connection goes on."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, path = head.split(b" ", 2)[:2]
        fault = self._fault(method.decode(), path.decode())
        if _EXPECTS.search(head):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = _EXPECTS.sub(b"", head)
        body = await _body(reader, head)
        await asyncio.sleep(self.delay_s)
        status, reply = None, b""
        if fault not in (Fault.NOT_DONE_503, Fault.DROPPED, Fault.HANGING):
            status, reply = await self._pass_on(head, body, has_body=method != b"HEAD")
            if method == b"PUT":
                self.on_put(path.decode(), body, status)
        self.seen.append(Seen(method.decode(), path.decode(), status, fault))
        match fault:
            case None:
                writer.write(reply)
            case Fault.NOT_DONE_503 | Fault.DONE_503:
                told = b"" if method == b"HEAD" else _BUSY
                writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: %d\r\n\r\n%s" % (len(told), told))
            case Fault.CUT:
                writer.write(reply[: len(reply) // 2])
            case Fault.HANGING:
                await self._healed.wait()
        await writer.drain()
        return fault in (None, Fault.NOT_DONE_503, Fault.DONE_503)

    async def _pass_on(self, head: bytes, body: bytes, *, has_body: bool) -> tuple[int, bytes]:
        """What the server says, over a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream, limit=1 << 20)
        try:
            writer.write(_KEPT.sub(b"", head)[:-2] + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
            answer = await reader.readuntil(b"\r\n\r\n")
            while answer.startswith(b"HTTP/1.1 100"):
                answer = await reader.readuntil(b"\r\n\r\n")
            status = int(answer.split(b" ", 2)[1])
            told = await _body(reader, answer) if has_body and status not in (204, 304) else b""
            answer = _CHUNKED.sub(b"\r\nContent-Length: %d" % len(told), answer)
            return status, _KEPT.sub(b"", answer) + told
        finally:
            writer.close()


async def _body(reader: Reader, head: bytes) -> bytes:
    if (match := _LENGTH.search(head)) is not None:
        return await reader.readexactly(int(match[1]))
    if _CHUNKED.search(head) is None:
        return b""
    told = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        told += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return told


@contextlib.asynccontextmanager
async def open_faults(
    upstream: int, *, port: int = 0, seed: int = 0, host: str = "127.0.0.1", listener: socket.socket | None = None
) -> AsyncIterator[S3Faults]:
    """The proxy, with nothing wrong yet; behind `listener`, if there is one. After the block nobody listens there."""
    faults = S3Faults(upstream, seed=seed)
    if listener is None:
        server = await asyncio.start_server(faults._serve, host, port, limit=1 << 20)
    else:
        server = await asyncio.start_server(faults._serve, sock=listener, limit=1 << 20)
    faults.port = server.sockets[0].getsockname()[1]
    try:
        yield faults
    finally:
        server.close()
        faults.heal()
        for task in tuple(faults._tasks):
            task.cancel()
        await asyncio.gather(*faults._tasks, return_exceptions=True)
        await server.wait_closed()
