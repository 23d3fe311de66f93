"""`pooldctl attach`: a shell in a sandbox, on our own terminal, that lives on when we leave it."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, unix_connect

from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.errors import CtlError, Refused, Unreachable, UsageError
from poold.ctl.execute import exit_code
from poold.ctl.ids import resolve
from poold.ctl.program import PROGRAM, say
from warren_console.left import Left
from warren_console.session import KEYBOARD, SCREEN, Session, terminal_size

CLOSE_LIMIT_S = 1.0  # poold's goodbye is not worth a longer wait
MAX_FRAME_BYTES = 16 << 20
GONE = ("not_found", "process_ended", "bad_request")  # what poold says of a shell that is no more


class _Shell:
    """A terminal at poold. `end` is what poold said last, or None if it said nothing."""

    def __init__(self, socket: ClientConnection, pid: int, *, is_again: bool) -> None:
        self.pid = pid
        self.is_again = is_again  # it was there before
        self.end: dict[str, Any] | None = None
        self._socket = socket

    def __iter__(self) -> Iterator[bytes]:
        with contextlib.suppress(ValueError):  # what is no JSON is no last word
            for message in self._socket:
                if isinstance(message, bytes):
                    yield message
                elif (told := json.loads(message)).get("type") in ("exit", "error"):
                    self.end = told

    def write(self, data: bytes) -> None:
        self._socket.send(data)

    def resize(self, columns: int, rows: int) -> None:
        self._socket.send(json.dumps({"type": "resize", "cols": columns, "rows": rows}))

    def close(self) -> None:
        self._socket.close()


def attach(context: Context) -> int:
    """The shell's exit code; 0 for one who detached."""
    detach = detach_byte(context.asked.detach_key)
    if not os.isatty(KEYBOARD) or not os.isatty(SCREEN):
        raise UsageError("attach needs a terminal", hint="without one: pooldctl exec ID -- CMD…")
    sandbox = resolve(context.poold, context.asked.sandbox)
    left = Left(PROGRAM, sandbox, os.environ)
    shell = _find(context, sandbox, left)
    if not context.asked.quiet:
        where = f"{'back in' if shell.is_again else 'in'} process {shell.pid} of {sandbox}"
        say(f"{where}; {context.asked.detach_key} leaves it running" if detach else where)
    session = Session(shell, ConnectionClosed, detach=detach, is_again=shell.is_again)
    try:
        is_left = session.run()
    finally:
        if shell.end is None:  # however we left, it lives on
            left.put(shell.pid)
    if shell.end is None or shell.end["type"] != "exit":
        sys.stderr.write("\n")  # the cursor may be anywhere in its line
    if is_left and shell.end is None:
        say(f"left; come back with: pooldctl attach {sandbox}")
        return errors.DONE
    return _ended(context, sandbox, shell.end)


def detach_byte(name: str) -> bytes:
    """The byte that a key like `ctrl-]` sends; none for `none`."""
    if name == "none":
        return b""
    match = re.fullmatch(r"(?:ctrl-|\^)([@a-z\[\\\]^_])", name.lower())
    if match is None:
        raise UsageError(f"--detach-key must be like ctrl-] or ctrl-a, or none, got {name!r}")
    return bytes([ord(match[1].upper()) & 0x1F])


def _find(context: Context, sandbox: str, left: Left) -> _Shell:
    """The shell that is asked for, or that was left last and still lives, or a new one."""
    asked = context.asked
    if asked.pid is not None:
        return _open(context, sandbox, asked.pid)
    wants_new = asked.new or asked.cmd is not None or asked.user is not None
    while not wants_new and (pid := left.take()) is not None:
        try:
            return _open(context, sandbox, pid)
        except CtlError as error:
            if not isinstance(error, Refused) or error.code not in GONE:
                left.put(pid)
                raise
    return _open(context, sandbox, None)


def _open(context: Context, sandbox: str, pid: int | None) -> _Shell:
    """Connect, and hear that there is a shell. Refusals come here, while the terminal is still as it was."""
    columns, rows = terminal_size()
    asked = {"cols": columns, "rows": rows, "user": context.asked.user, "cmd": context.asked.cmd}
    query = {"pid": pid, "after": 0} if pid is not None else asked
    path = f"/v1/sandboxes/{sandbox}/terminal"
    target = f"ws://localhost{path}?{urlencode({name: value for name, value in query.items() if value is not None})}"
    socket = _connect(context, target)
    try:
        told = json.loads(socket.recv(context.poold.timeout_s))
        if told.get("type") == "start":
            return _Shell(socket, told["pid"], is_again=pid is not None)
        error = told.get("error", {})
        raise Refused(400, str(error.get("code")), str(error.get("message")))
    except (ConnectionClosed, TimeoutError) as error:
        socket.close()
        raise Unreachable(f"poold opened no terminal ({error})", hint="see poold's log") from error
    except BaseException:
        socket.close()
        raise


def _connect(context: Context, target: str) -> ClientConnection:
    limit_s = context.poold.timeout_s
    try:
        with context.poold.translated():
            # On a unix socket neither compression nor pings gain anything: its end is always noticed.
            return unix_connect(
                str(context.poold.path),
                target,
                compression=None,
                max_size=MAX_FRAME_BYTES,
                open_timeout=limit_s,
                close_timeout=CLOSE_LIMIT_S,
                ping_interval=None,
            )
    except InvalidStatus as error:
        status = error.response.status_code
        raise Refused(status, f"http_{status}", "poold refuses a terminal there") from error
    except InvalidHandshake as error:
        raise CtlError(f"poold's answer is not a WebSocket: {error}", hint="is it poold that listens there?") from error


def _ended(context: Context, sandbox: str, end: dict[str, Any] | None) -> int:
    if end is None:
        hint = f"if poold runs again: pooldctl attach {sandbox}"
        raise Unreachable(f"the connection to {context.poold.path} was lost", hint=hint)
    if end["type"] == "exit":
        return exit_code(end)
    error = end.get("error", {})
    raise CtlError(f"{error.get('code')}: {error.get('message')}", hint=_fate(context, sandbox))


def _fate(context: Context, sandbox: str) -> str:
    """What became of the sandbox, as far as poold still tells."""
    try:
        row = context.poold.get(f"/v1/sandboxes/{sandbox}")
    except CtlError:
        return ""
    return f"{sandbox} is {row['state']}" + (f": {row['reason']}" if row.get("reason") else "")
