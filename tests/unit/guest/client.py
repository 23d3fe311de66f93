"""A small client that speaks to a guest in plain bytes, and a guest to speak to."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warren_guest import frames

GUEST = Path(__file__).parents[3] / "guest"
LIMIT_S = 20.0
Frames = list[tuple[int, bytes]]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class Conversation:
    """One connection. Reads replies as they come, with a limit on every wait."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._chunked = False
        self._left = 0

    async def send(self, method: str, target: str, body: bytes | None = None, **headers: str) -> None:
        lines = [f"{method} {target} HTTP/1.1", "Host: guest"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b""))
        await self.writer.drain()

    async def head(self) -> Reply:
        async with asyncio.timeout(LIMIT_S):
            raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = raw.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._chunked = headers.get("transfer-encoding") == "chunked"
        self._left = int(headers.get("content-length", 0))
        return Reply(int(first.split()[1]), headers, b"")

    async def piece(self) -> bytes:
        """The next chunk of a streamed answer; empty at its end."""
        async with asyncio.timeout(LIMIT_S):
            if not self._chunked:
                data = await self.reader.read(min(self._left, 1 << 20)) if self._left else b""
                self._left -= len(data)
                return data
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def reply(self) -> Reply:
        reply = await self.head()
        while piece := await self.piece():
            reply.body += piece
        return reply

    async def frames(self) -> AsyncIterator[tuple[int, bytes]]:
        rest = b""
        while piece := await self.piece():
            found, rest = frames.unframe(rest + piece)
            for frame in found:
                yield frame
        assert rest == b""

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Server-sent events as `{"event", "number"?, ...data}`."""
        rest = b""
        while piece := await self.piece():
            *whole, rest = (rest + piece).split(b"\n\n")
            for block in whole:
                fields = dict(line.split(": ", 1) for line in block.decode().splitlines() if not line.startswith(":"))
                if fields:
                    named = {"event": fields["event"], **({"number": int(fields["id"])} if "id" in fields else {})}
                    yield {**json.loads(fields["data"]), **named}

    async def close(self) -> None:
        self.writer.close()
        with_error = await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)
        assert all(error is None or isinstance(error, OSError) for error in with_error)


class Client:
    def __init__(self, path: str, pid: int, workspace: Path) -> None:
        self.path, self.pid, self.workspace = path, pid, workspace
        self._open: list[Conversation] = []

    async def connect(self) -> Conversation:
        conversation = Conversation(*await asyncio.open_unix_connection(self.path, limit=1 << 22))
        self._open.append(conversation)
        return conversation

    async def close(self) -> None:
        for conversation in self._open:
            await conversation.close()

    async def call(self, method: str, target: str, body: Any = None, **headers: str) -> Reply:
        conversation = await self.connect()
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        await conversation.send(method, target, data, **headers)
        reply = await conversation.reply()
        await conversation.close()
        self._open.remove(conversation)
        return reply

    async def stream(self, method: str, target: str, body: Any = None, **headers: str) -> Conversation:
        """Ask for a stream, and see that it was given."""
        conversation = await self.connect()
        await conversation.send(method, target, None if body is None else json.dumps(body).encode(), **headers)
        head = await conversation.head()
        assert head.status == 200, await conversation.piece()
        return conversation

    async def run(self, script: str, **more: Any) -> Frames:
        """Every frame of `bash -c script`."""
        stream = await self.stream("POST", "/processes", {"cmd": "bash", "args": ["-c", script], **more})
        found = [frame async for frame in stream.frames()]
        await stream.close()
        return found

    async def start(self, script: str, **more: Any) -> int:
        body = {"cmd": "bash", "args": ["-c", script], **more}
        reply = await self.call("POST", "/processes?detach=1", body)
        assert reply.status == 201, reply
        return int(reply.json["pid"])

    async def until(self, is_so: Callable[[], Awaitable[Any]]) -> Any:
        """Wait for a state, with a limit. Returns what `is_so` said last."""
        async with asyncio.timeout(LIMIT_S):
            while not (said := await is_so()):
                await asyncio.sleep(0.01)
        return said

    async def until_ended(self, pid: int) -> dict[str, Any]:
        async def ended() -> Any:
            facts = (await self.call("GET", f"/processes/{pid}")).json
            return facts if "ended_ms" in facts else None

        found: dict[str, Any] = await self.until(ended)
        return found


def launch(
    folder: Path, *arguments: str, program: Sequence[str] = ("-m", "warren_guest")
) -> tuple["subprocess.Popen[bytes]", str]:
    """Start a guest on a socket in `folder` and wait until it is ready."""
    path = str(folder / "guest.sock")
    argv = [
        sys.executable,
        *program,
        "--socket",
        path,
        "--workspace",
        str(folder / "workspace"),
        *arguments,
    ]
    process = subprocess.Popen(argv, cwd=GUEST, stdout=subprocess.PIPE, env={**os.environ, "SECRET": "of the host"})
    assert process.stdout is not None
    assert b"ready" in process.stdout.readline()
    return process, path


def end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
    assert process.stdout is not None
    assert process.stdout.read() == b"", "a local guest says nothing after its ready line"
    process.stdout.close()


def output(found: Frames, kind: int) -> bytes:
    return b"".join(payload for k, payload in found if k == kind)


def facts(found: Frames, kind: int) -> dict[str, Any]:
    (payload,) = [payload for k, payload in found if k == kind]
    loaded: dict[str, Any] = json.loads(payload)
    return loaded


async def read_until(stream: Conversation, text: bytes, kind: int = frames.STDOUT) -> bytes:
    """Read output until `text` is in it."""
    seen = b""
    async for found, payload in stream.frames():
        seen += payload if found == kind else b""
        if text in seen:
            return seen
    raise AssertionError(f"the stream ended after {seen!r}")
