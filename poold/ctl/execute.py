"""`pooldctl exec`: one command in a sandbox, its output as it comes and byte for byte, its exit code as ours."""

import base64
import signal
import sys
from typing import Any, NoReturn

from contract.models import MAX_STDIN_CHARS
from poold.ctl import errors
from poold.ctl.client import Client, encoded
from poold.ctl.context import Context
from poold.ctl.errors import CtlError, Refused, UsageError
from poold.ctl.ids import resolve
from poold.ctl.program import say
from warren_console.output import write_all

MAX_BODY_BYTES = 1 << 20  # of a request to poold
OUTPUT = {"stdout": 1, "stderr": 2}


def execute(context: Context) -> int:
    if not context.asked.words:
        raise UsageError("say what to run", hint="as in: pooldctl exec ID -- CMD…")
    try:
        return _execute(context.poold, resolve(context.poold, context.asked.sandbox), _request(context))
    except UsageError:
        raise
    except CtlError as error:
        # Its own codes belong to the command: whoever sees 3 must be able to rely on it.
        is_late = isinstance(error, Refused) and error.code == "deadline_passed"
        error.exit_code = errors.DEADLINE if is_late else errors.CANNOT_RUN
        raise


def _request(context: Context) -> dict[str, Any]:
    asked = context.asked
    fields = {"cmd": asked.words, "user": asked.user, "cwd": asked.cwd, "timeout_sec": asked.timeout_sec}
    request = {name: value for name, value in fields.items() if value is not None}
    if asked.env:
        request["env"] = dict(asked.env)
    if asked.stdin:
        request["stdin"] = _read_input()
        if len(encoded(request) or b"") > MAX_BODY_BYTES:
            _too_long()
    return request


def _read_input() -> str:
    data = sys.stdin.buffer.read(MAX_STDIN_CHARS + 1)
    if len(data) > MAX_STDIN_CHARS:
        _too_long()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CtlError(f"standard input is not UTF-8 text (byte {error.start})", hint=UPLOAD) from None


UPLOAD = "put it into a file of the sandbox (PUT /v1/sandboxes/ID/files) and let the command read that"


def _too_long() -> NoReturn:
    raise CtlError("standard input, with the rest of the request, exceeds poold's limit of 1 MiB", hint=UPLOAD)


def _execute(poold: Client, sandbox: str, request: dict[str, Any]) -> int:
    pid = None
    try:
        with poold.stream("POST", f"/v1/sandboxes/{sandbox}/exec", request, {"encoding": "base64"}) as events:
            for event in events:
                if event.kind == "start":
                    pid = event.data["pid"]
                elif event.kind in OUTPUT:
                    write_all(OUTPUT[event.kind], base64.b64decode(event.data["data"]))
                elif event.kind == "exit":
                    return exit_code(event.data)
                elif event.kind == "error":
                    raise Refused(500, str(event.data.get("code")), str(event.data.get("message")))
    except KeyboardInterrupt:
        if pid is not None:
            say(f"left; the command goes on in the sandbox as process {pid}")
        raise
    raise CtlError("poold went away before the command ended; how it ends is not known", hint="see: pooldctl status")


def exit_code(ended: dict[str, Any]) -> int:
    """What a shell would say of a process that ended so."""
    if ended.get("exit_code") is not None:
        return int(ended["exit_code"])
    name = str(ended.get("signal"))
    return 128 + signal.Signals[name].value if name in signal.Signals.__members__ else errors.CANNOT_RUN
