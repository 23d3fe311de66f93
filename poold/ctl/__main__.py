"""The front door: environment, arguments and signals are read here; errors become exit codes here and nowhere else."""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from poold.ctl import errors
from poold.ctl.errors import CtlError
from poold.ctl.parser import build

DEFAULT_TIMEOUT_S = 120.0  # a machine of a new shape is booted first, which takes a while without KVM
DEFAULT_RUN_DIR = "/run/warren"


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Do what `argv` asks for. Gives the exit code; what failed is told on standard error."""
    # As errors, so that every block is left in order: terminals are put right again.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except CtlError as error:
        _complain(error)
        return error.exit_code
    except BrokenPipeError:
        # Whoever read has enough. What is left in the buffer must not complain at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.BROKEN_PIPE
    except KeyboardInterrupt:
        return errors.INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    asked = _parse(argv)
    asked.json = getattr(asked, "json", False)
    asked.socket = Path(getattr(asked, "socket", None) or _socket(os.environ))
    asked.timeout = getattr(asked, "timeout", DEFAULT_TIMEOUT_S)

    # Only what this command needs is imported: people wait for the rest.
    from poold.ctl.client import Client
    from poold.ctl.context import Context
    from warren_console.output import Output

    module, _, function = asked.run.partition(".")
    command = getattr(importlib.import_module(f"poold.ctl.{module}"), function)
    out = Output(sys.stdout, as_json=asked.json)
    code: int = command(Context(asked, Client(asked.socket, asked.timeout), out))
    return code


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """What stands after `--` is a command for a sandbox, and none of our business."""
    cut = list(argv).index("--") if "--" in argv else len(argv)
    parser = build()
    asked = parser.parse_args(argv[:cut])
    after = list(argv[cut + 1 :])
    if "words" in asked:
        asked.words = asked.words + after
    elif after:
        parser.error(f"this command takes nothing after --, got {after[0]!r}")
    return asked


def _socket(environ: Mapping[str, str]) -> str:
    return environ.get("POOLD_SOCKET") or f"{environ.get('POOLD_RUN_DIR') or DEFAULT_RUN_DIR}/poold.sock"


def _complain(error: CtlError) -> None:
    from poold.ctl.program import say

    say(error.message)
    if error.hint:
        say(error.hint)


def _terminated(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
