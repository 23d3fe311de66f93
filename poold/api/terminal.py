"""A terminal over a WebSocket: binary frames are bytes, text frames are JSON messages.

From us: `{"type": "start", "pid"}` first, `{"type": "exit", …}` or `{"type": "error", "error"}` last.
From the client: `{"type": "resize", "cols", "rows"}`. Leaving detaches: the shell lives on, and
`?pid=…` attaches to it again, with what it printed lately.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.websockets import WebSocket, WebSocketDisconnect

from contract.errors import BadField, CallerError, WarrenError
from contract.fields import Fields
from contract.models import MAX_ARG_CHARS, user_name
from poold.api.audited import Use, using
from poold.commands import Ended, Output, Started, follow, start
from poold.link import Answer, Guest

MAX_SIDE = 1000  # of a terminal, in characters
MAX_PIECE = 1 << 20  # of input in one frame
INPUT_WAITING = 16  # pieces of input that wait for a slow program; then the client has to

FAREWELL_S = 0.3

CLOSED_OK = 1000
CLOSED_BAD = 4400  # the client's fault; the reason is in the message before
CLOSED_BROKEN = 4500


async def attach(socket: WebSocket) -> None:
    await socket.accept()
    try:
        async with using(socket, "terminal") as use, _stream(socket, use.guest) as answer:
            await _serve(socket, use, answer)
    except* WebSocketDisconnect:
        pass  # the client left; its shell goes on
    except* WarrenError as group:
        await _refuse(socket, _first(group))


async def _serve(socket: WebSocket, use: Use, answer: Answer) -> None:
    """Carry bytes both ways until the process ends or the client leaves."""
    said = follow(answer)
    use.bytes = 0
    async with contextlib.aclosing(said):
        started = await anext(said)
        if not isinstance(started, Started):
            raise CallerError("the process has already ended")
        await _tell(socket, type="start", pid=started.pid)
        async with asyncio.TaskGroup() as tasks:
            typing = tasks.create_task(_type(socket, use.guest, started.pid))
            async for event in said:
                match event:
                    case Output(_, data):
                        use.bytes += len(data)
                        await socket.send_bytes(data)
                    case Ended(exit_code, signal, duration_ms):
                        use.exit_code = exit_code
                        await _tell(socket, type="exit", exit_code=exit_code, signal=signal, duration_ms=duration_ms)
            typing.cancel()
    await _close(socket, CLOSED_OK, None)


def _stream(socket: WebSocket, guest: Guest) -> contextlib.AbstractAsyncContextManager[Answer]:
    """A new shell, or one that is there already."""
    query = socket.query_params
    pid = query.get("pid")
    if pid is not None:
        if not pid.isascii() or not pid.isdigit() or len(pid) > 9:
            raise BadField("pid", pid, "must be the number of a process")
        after = query.get("after", "0")
        if not after.isascii() or not after.isdigit() or len(after) > 18:
            raise BadField("after", after, "must be a number of bytes")
        return guest.exchange("GET", f"/processes/{pid}/attach?after={after}")
    request = {
        "cols": _side("cols", query.get("cols", "80")),
        "rows": _side("rows", query.get("rows", "24")),
        "user": user_name(query.get("user")),
        **_command(query.get("cmd")),
    }
    return start(guest, "/terminal", request)


def _command(line: str | None) -> dict[str, Any]:
    """What runs in the terminal: a login shell, or the command line that was asked for."""
    if line is None:
        return {}
    if not line.strip() or "\0" in line or len(line) > MAX_ARG_CHARS:
        raise BadField("cmd", line, f"must be a command line of at most {MAX_ARG_CHARS} characters")
    return {"cmd": "/bin/bash", "args": ["-lc", line]}


async def _type(socket: WebSocket, guest: Guest, pid: int) -> None:
    """Carry what the client sends: input on one long request, resizes on their own."""
    pieces: asyncio.Queue[bytes] = asyncio.Queue(INPUT_WAITING)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_input(guest, pid, pieces))
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1005))
            data = message.get("bytes")
            if data is not None:
                if len(data) > MAX_PIECE:
                    raise CallerError(f"a frame of input must have at most {MAX_PIECE} bytes, got {len(data)}")
                await pieces.put(data)
            else:
                await guest.call("POST", f"/processes/{pid}/resize", _resize(message["text"]))


async def _input(guest: Guest, pid: int, pieces: "asyncio.Queue[bytes]") -> None:
    async def body() -> AsyncIterator[bytes]:
        while True:
            yield await pieces.get()

    # Whatever ends the input also ends the output, and there it is told.
    with contextlib.suppress(WarrenError):
        async with guest.exchange("POST", f"/processes/{pid}/stdin", body=body(), limit_s=None) as answer:
            await answer.read(1 << 16)
    while True:  # nobody takes it any more, but a client that waits for room could not be heard leaving
        await pieces.get()


def _resize(text: str) -> dict[str, int]:
    fields = Fields.parse(text.encode())
    if fields.raw("type") != "resize":
        raise CallerError('a text frame must be {"type": "resize", "cols": …, "rows": …}')
    size = {name: fields.integer(name, low=1, high=MAX_SIDE) for name in ("cols", "rows")}
    fields.end()
    return size


def _side(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= MAX_SIDE:
        raise BadField(name, text, f"must be a whole number from 1 to {MAX_SIDE}")
    return int(text)


async def _tell(socket: WebSocket, **message: Any) -> None:
    await socket.send_text(orjson.dumps(message).decode())


async def _refuse(socket: WebSocket, error: WarrenError) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it may have left already
        await _tell(socket, type="error", **error.body())
        await _close(socket, CLOSED_BAD if error.status < 500 else CLOSED_BROKEN, error.code)


async def _close(socket: WebSocket, code: int, reason: str | None) -> None:
    """Close, once the client has had time to read our last message and to leave by itself.

    Our server hangs up as soon as it has closed. A client that still has to answer the close then gets an error from
    its socket, and may throw away what it has not read.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FAREWELL_S):
            while (await socket.receive())["type"] != "websocket.disconnect":
                pass
        return
    await socket.close(code, reason)


def _first(group: BaseExceptionGroup[WarrenError]) -> WarrenError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, WarrenError)  # noqa: S101 — `except*` lets nothing else in
    return error
