"""Litestream's control socket: HTTP, one call on a connection of its own."""

import asyncio
from pathlib import Path
from typing import Any

import orjson

from poold.files import short_name
from poold.replica.errors import ReplicaError

MAX_ANSWER_BYTES = 1 << 20


async def call(socket: Path, method: str, path: str, asked: dict[str, Any] | None = None) -> dict[str, Any]:
    """What Litestream answers. Raises `ReplicaError` if it does not, or says no. Who calls sets the limit of time."""
    try:
        answer = await _exchange(socket, method, path, b"" if asked is None else orjson.dumps(asked))
        head, _, body = answer.partition(b"\r\n\r\n")
        status, told = int(head.split(b" ", 2)[1]), orjson.loads(body)
    except (OSError, ValueError, IndexError) as error:
        raise ReplicaError("asking", "Litestream", hint=str(error) or type(error).__name__) from error
    if status != 200 or not isinstance(told, dict):
        why = told.get("error") if isinstance(told, dict) else None
        raise ReplicaError("asking", "Litestream", hint=str(why or f"it answered {status}")[:500])
    return told


async def _exchange(socket: Path, method: str, path: str, body: bytes) -> bytes:
    with short_name(socket) as name:
        reader, writer = await asyncio.open_unix_connection(name)
    try:
        head = f"{method} {path} HTTP/1.1\r\nHost: litestream\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"\r\n" + body)
        await writer.drain()
        answer = await reader.read(MAX_ANSWER_BYTES)
        while more := await reader.read(MAX_ANSWER_BYTES - len(answer)):
            answer += more
        return answer
    finally:
        writer.close()
