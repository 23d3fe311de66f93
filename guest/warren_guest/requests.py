"""From requests to plain values: reads JSON bodies and checks them, so that handlers only act."""

import signal

from warren_guest.errors import RefusedError
from warren_guest.fields import Fields, bad_field, parse_object
from warren_guest.guest import Guest
from warren_guest.paths import resolve
from warren_guest.processes import Start
from warren_guest.server import Request
from warren_guest.spawn import Program, Window

JSON_LIMIT = 1 << 20
_YEAR_MS = 366 * 24 * 3600 * 1000


async def read_object(request: Request) -> Fields:
    return parse_object(await request.body.whole(JSON_LIMIT))


def parse_window(fields: Fields) -> Window:
    return Window(fields.required_number("cols", 1, 65_535), fields.required_number("rows", 1, 65_535))


def parse_start(fields: Fields, guest: Guest, arrived: float) -> Start:
    """A process as it was asked for with `POST /processes`."""
    nested = fields.nested("pty")
    pty = None if nested is None else parse_window(nested)
    command = (fields.required_text("cmd"), *fields.texts("args"))
    return _start(fields, guest, arrived, command, pty)


def parse_terminal(fields: Fields, guest: Guest, arrived: float) -> Start:
    """A login shell on a terminal, or another program there."""
    cmd = fields.text("cmd")
    args = fields.texts("args") if cmd or fields.has("args") else ["-il"]
    return _start(fields, guest, arrived, (cmd or "bash", *args), parse_window(fields))


def _start(fields: Fields, guest: Guest, arrived: float, command: tuple[str, ...], pty: Window | None) -> Start:
    account = guest.accounts.find(fields.text("user"))
    env = guest.environment(account, fields.environment("env") or {}, pty=pty is not None)
    cwd = fields.text("cwd")
    timeout_ms = fields.number("timeout_ms", 1, _YEAR_MS)
    stdin = fields.flag("stdin")
    program = Program(
        cmd=command[0],
        args=command[1:],
        env=env,
        cwd=resolve(cwd, account, guest.accounts, "cwd") if cwd else guest.default_cwd(account),
        account=account,
        stdin=pty is not None if stdin is None else stdin,
        pty=pty,
    )
    deadline = None if timeout_ms is None else arrived + timeout_ms / 1000
    return Start(program, tag=fields.text("tag", limit=256), deadline=deadline)


def parse_signal(fields: Fields) -> int:
    """A signal by name or number."""
    if not fields.has("signal"):
        raise bad_field("signal", "is required")
    value = fields.raw("signal")
    try:
        if isinstance(value, str):
            return int(signal.Signals[value])
        if isinstance(value, int) and not isinstance(value, bool) and value in signal.valid_signals():
            return value
    except KeyError:
        pass
    raise RefusedError("unknown_signal", f"signal: {ascii(value)[:60]} is not a signal", field="signal")
