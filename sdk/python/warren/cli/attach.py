"""`warren attach`: a shell in a sandbox, on our own terminal, that lives on when we leave it."""

import os
import re
import sys
from dataclasses import dataclass
from typing import Any

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.errors import UsageError
from warren.cli.execute import exit_code
from warren.cli.ids import find
from warren.cli.program import PROGRAM, say
from warren.cli.progress import busy
from warren.client import Sandbox
from warren.errors import ProtocolError, StreamBroken, Unreachable, WarrenError
from warren.terminals import Terminal
from warren_console.left import Left
from warren_console.session import KEYBOARD, SCREEN, Session, terminal_size

GONE = ("not_found", "process_ended", "bad_request")  # what is said of a shell that is no more


@dataclass(frozen=True)
class _Shell:
    terminal: Terminal
    is_again: bool  # it was there before


def attach(context: Context) -> int:
    """The shell's exit code; 0 for one who detached."""
    detach = detach_byte(context.asked.detach_key)
    if not os.isatty(KEYBOARD) or not os.isatty(SCREEN):
        raise UsageError("attach needs a terminal", hint="without one: warren exec ID -- CMD…")
    sandbox = find(context.warren, context.asked.sandbox)
    left = Left(PROGRAM, sandbox.id, os.environ)
    with busy(f"opening a terminal in {sandbox.id}"):
        shell = _find(context, sandbox, left)
    if not context.asked.quiet:
        where = f"{'back in' if shell.is_again else 'in'} process {shell.terminal.pid} of {sandbox.id}"
        say(f"{where}; {context.asked.detach_key} leaves it running" if detach else where)
    return _show(sandbox, shell, left, detach)


def _show(sandbox: Sandbox, shell: _Shell, left: Left, detach: bytes) -> int:
    session = Session(shell.terminal, WarrenError, detach=detach, is_again=shell.is_again)
    try:
        is_left = session.run()
    finally:
        if shell.terminal.exited is None:  # however we left, it lives on
            left.put(shell.terminal.pid)
    if shell.terminal.exited is not None:
        return exit_code(shell.terminal.exited)
    sys.stderr.write("\n")  # the cursor may be anywhere in its line
    if is_left:
        say(f"left; come back with: warren attach {sandbox.id}")
        return errors.DONE
    raise session.error or StreamBroken("the connection to the terminal was lost; the shell lives on")


def detach_byte(name: str) -> bytes:
    """The byte that a key like `ctrl-]` sends; none for `none`."""
    if name == "none":
        return b""
    match = re.fullmatch(r"(?:ctrl-|\^)([@a-z\[\\\]^_])", name.lower())
    if match is None:
        raise UsageError(f"--detach-key must be like ctrl-] or ctrl-a, or none, got {name!r}")
    return bytes([ord(match[1].upper()) & 0x1F])


def _find(context: Context, sandbox: Sandbox, left: Left) -> _Shell:
    """The shell that is asked for, or that was left last and still lives, or a new one."""
    asked = context.asked
    if asked.pid is not None:
        return _Shell(_open(context, sandbox, asked.pid), is_again=True)
    wants_new = asked.new or asked.cmd is not None or asked.user is not None
    while not wants_new and (pid := left.take()) is not None:
        try:
            return _Shell(_open(context, sandbox, pid), is_again=True)
        except WarrenError as error:
            if error.code not in GONE:
                left.put(pid)
                raise
    return _Shell(_open(context, sandbox, None), is_again=False)


def _open(context: Context, sandbox: Sandbox, pid: int | None) -> Terminal:
    """At the host itself; through the gateway if that is asked for, or if the host cannot be reached from here."""
    columns, rows = terminal_size()
    asked: dict[str, Any] = {"cols": columns, "rows": rows, "pid": pid}
    asked |= {"user": context.asked.user, "cmd": context.asked.cmd}
    if not context.asked.via_gateway:
        try:
            return sandbox.terminal(direct=True, **asked)
        except (Unreachable, ProtocolError) as error:
            say(f"its host cannot be reached from here, so through the gateway: {error.message}")
        except WarrenError as error:
            if error.code != "no_such_route":  # what we speak to is a host
                raise
    return sandbox.terminal(**asked)
