"""A connection to a port of a sandbox over a WebSocket: binary frames are the bytes, both ways.

The text frame `eof` ends one direction. What is wrong is said before the upgrade, with its status; a connection that
breaks later is closed with a code that is not 1000. What the bytes mean is for others: we do not read them.
"""

import asyncio
import contextlib

from starlette.websockets import WebSocket, WebSocketDisconnect

from contract.errors import BadField, CallerError, NotFound, WarrenError
from poold.api.audited import Use, using
from poold.api.services import asked_id, caller_of, services
from poold.link import Tunnel

EOF = "eof"
FAREWELL_S = 2.0
CLOSED_OK = 1000
CLOSED_BAD = 4400  # the client's fault
CLOSED_BROKEN = 4500
ANYONE = ""  # the owner in a ticket for a visitor who has not said who they are


async def connect(socket: WebSocket) -> None:
    """Carry bytes until both directions have ended or somebody leaves. The sandbox is in use all that time."""
    port = _port(socket.path_params["port"])
    if caller_of(socket).owner == ANYONE:
        await _must_be_public(socket, port)
    async with using(socket, "port.connect", port=str(port)) as use, use.guest.connect(port) as tunnel:
        await socket.accept()
        try:
            await _carry(socket, tunnel, use)
        except* WebSocketDisconnect:
            pass  # the client left, and the connection to the port with it
        except* WarrenError as group:
            await _break(socket, use, group)


async def _carry(socket: WebSocket, tunnel: Tunnel, use: Use) -> None:
    use.bytes = 0
    has_ended = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        hearing = tasks.create_task(_hear(socket, tunnel, use, has_ended))
        while data := await tunnel.read():
            use.bytes += len(data)
            await socket.send_bytes(data)
        await socket.send_text(EOF)
        await has_ended.wait()
        hearing.cancel()
    await _close(socket)


async def _hear(socket: WebSocket, tunnel: Tunnel, use: Use, has_ended: asyncio.Event) -> None:
    """Pass on what the client sends. The next frame is asked for when the last one was taken."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        data = message.get("bytes")
        if has_ended.is_set() or (data is None and message["text"] != EOF):
            raise CallerError(f"frames are binary, then one with the text {EOF!r}, then none")
        if data is None:
            await tunnel.end()
            has_ended.set()
        elif data:
            use.bytes = (use.bytes or 0) + len(data)
            await tunnel.write(data)


async def _must_be_public(socket: WebSocket, port: int) -> None:
    """For a visitor without an owner, a port that is not public is not there, and neither is its sandbox."""
    sandbox_id = asked_id(socket)
    if port not in (await services(socket).sandboxes.get(sandbox_id)).public_ports:
        raise NotFound(f"no sandbox {sandbox_id!r} with a public port {port}", sandbox=sandbox_id, port=port)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= 65_535:
        raise BadField("port", text, "must be a whole number from 1 to 65535")
    return int(text)


async def _break(socket: WebSocket, use: Use, group: BaseExceptionGroup[WarrenError]) -> None:
    """Say that the connection broke: a cut must not look like an end."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, WarrenError)  # noqa: S101 — `except*` lets nothing else in
    use.detail["error"] = error.code
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it may have left already
        await socket.close(CLOSED_BAD if error.status < 500 else CLOSED_BROKEN, error.code)


async def _close(socket: WebSocket) -> None:
    """Close, once the client has had time to read our last frame and to leave by itself.

    Our server hangs up as soon as it has closed, and a client that still has to answer may lose what it has not read.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FAREWELL_S):
            while (await socket.receive())["type"] != "websocket.disconnect":
                pass
        return
    await socket.close(CLOSED_OK)
