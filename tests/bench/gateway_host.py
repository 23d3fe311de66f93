"""A host for the gateway's benchmark: it answers at once, so that what is measured is the way to it. Raw ASGI."""

import asyncio
import time
from typing import Any

from contract.hosts import Host
from contract.ring import Room

RECORD = Host("bench", "http://127.0.0.1:1", 1, Room(10, 10), Room(1024, 1024), version="bench").encode()
SMALL = b'{"id":"sb-abcdefghijklmn23","state":"running","image":"python","vcpus":1,"memory_mb":256,"labels":{}}'
PIECE = bytes(64 << 10)
LARGE_BYTES = 100_000_000
EVENTS_PER_S = 10


async def app(scope: Any, receive: Any, send: Any) -> None:
    path: str = scope["path"]
    if scope["type"] == "websocket":
        await echo(receive, send)
    elif path.endswith("/files"):
        await large(send)
    elif path.endswith("/events"):
        await events(receive, send)
    else:
        await reply(send, RECORD if path == "/v1/host" else SMALL)


async def reply(send: Any, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def large(send: Any) -> None:
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % LARGE_BYTES)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    left = LARGE_BYTES
    while left:
        piece = PIECE[:left]
        left -= len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": bool(left)})


async def events(receive: Any, send: Any) -> None:
    """Each event says when it was sent. All clocks here are one machine's."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    leaving = asyncio.create_task(until_left(receive))
    try:
        while not leaving.done():
            event = b"data: %d\n\n" % time.monotonic_ns()
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(1 / EVENTS_PER_S)
    finally:
        leaving.cancel()


async def until_left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def echo(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "bytes": message["bytes"]})
