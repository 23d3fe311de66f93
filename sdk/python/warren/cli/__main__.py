"""The front door: environment, arguments and signals are read here; errors become exit codes here and nowhere else."""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.parser import PATIENCE_S, build
from warren.cli.program import say
from warren.errors import WarrenError
from warren_console.completion import Place
from warren_console.output import Output


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
    except WarrenError as error:
        _complain(error)
        return errors.exit_code_of(error)
    except BrokenPipeError:
        # Whoever read has enough. What is left in the buffer must not complain at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.BROKEN_PIPE
    except KeyboardInterrupt:
        return errors.INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    asked = _parse(argv)
    asked.json = getattr(asked, "json", False)
    asked.patience = getattr(asked, "patience", PATIENCE_S)
    # Only what this command needs is imported: people wait for the rest.
    module, _, function = asked.run.partition(".")
    command = getattr(importlib.import_module(f"warren.cli.{module}"), function)
    code: int = command(Context(asked, Output(sys.stdout, as_json=asked.json)))
    return code


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """What a sandbox is to run is none of our business: it stands after `--`, or after the sandbox's ID."""
    parser = build()
    cut = _command_at(parser, argv)
    asked = parser.parse_args(argv[:cut])
    after = list(argv[cut:])
    if "words" in asked:
        asked.words = after[1:] if after[:1] == ["--"] else after
    elif after:
        parser.error(f"this command takes nothing after --, got {' '.join(after[1:])!r}")
    return asked


def _command_at(parser: argparse.ArgumentParser, argv: Sequence[str]) -> int:
    """Where the words of a sandbox's command begin: at `--`, or where `exec` expects them."""
    place = Place(parser)
    for index, word in enumerate(argv):
        expected = place.positional
        is_word = place.option is None and (not word.startswith("-") or word == "-")
        if word == "--" or (is_word and expected is not None and expected.dest == "words"):
            return index
        place.step(word)
    return len(argv)


def _complain(error: WarrenError) -> None:
    hint = errors.hint_of(error)
    asked = f" (request {error.request_id})" if error.request_id and (error.status or 0) >= 500 else ""
    say(f"{error}{asked}" + (f"; {hint}" if hint else ""))


def _terminated(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
