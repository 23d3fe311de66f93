"""`warren exec`: one command in a sandbox, its output as it comes and byte for byte, its exit code as ours.

For a program (`--json`), one object at its end: how it ended, and what it said as text.

A signal for us is for the command: it is passed on, and we wait for what comes of it.
"""

import contextlib
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import IO, Any

from warren.calls import Command, RunOptions
from warren.cli import errors
from warren.cli.context import Context
from warren.cli.errors import Failure, UsageError
from warren.cli.ids import find
from warren.cli.program import say
from warren.cli.progress import Bar
from warren.client import Sandbox
from warren.errors import DeadlinePassed, StreamBroken, WarrenError
from warren.flows import Collected
from warren.models import Exited, Said, Started, Stderr, Stdout
from warren_console.output import write_all

INLINE_BYTES = 128 << 10  # of standard input within the request; more goes into a file first
# Standard input from a file that is gone by the time that the program reads it.
FROM_FILE = 'exec <"$0" && rm -f -- "$0" && exec "$@"'
PASSED_ON = {signal.SIGINT: "INT", signal.SIGTERM: "TERM", signal.SIGHUP: "HUP"}
STDOUT, STDERR = 1, 2


def execute(context: Context) -> int:
    if not context.asked.words:
        raise UsageError("say what to run", hint="warren exec ID [-i] [-u USER] -- CMD…")
    try:
        return _execute(context)
    except BrokenPipeError:
        raise
    except WarrenError as error:
        # Their own codes belong to the command: whoever sees 3 must be able to rely on it.
        failure = Failure(str(error), hint=errors.hint_of(error))
        failure.exit_code = errors.DEADLINE if isinstance(error, DeadlinePassed) else errors.CANNOT_RUN
        raise failure from error


def _execute(context: Context) -> int:
    asked = context.asked
    sandbox = find(context.warren, asked.sandbox)
    options: RunOptions = {}
    fields = {"user": asked.user, "cwd": asked.cwd, "timeout_sec": asked.timeout_sec, "env": dict(asked.env)}
    options.update({name: value for name, value in fields.items() if value})  # type: ignore[typeddict-item]
    # One word is a command line; several are a program and its arguments, as they are.
    command: Command = asked.words[0] if len(asked.words) == 1 else asked.words
    kept = Collected() if context.out.as_json else None
    with _with_input(sandbox, command, options) if asked.stdin else contextlib.nullcontext(command) as command:
        code = _Run(sandbox, kept).run(command, options)
    if kept is not None:
        context.out.json(asdict(kept.result()))
    return code


class _Run:
    """One command, from its start to its end. What it says is kept, or shown at once if there is nowhere to keep it."""

    def __init__(self, sandbox: Sandbox, kept: Collected | None) -> None:
        self._sandbox, self._kept = sandbox, kept
        self._pid: int | None = None
        self._interrupts = 0

    def run(self, command: Command, options: RunOptions) -> int:
        try:
            with self._signals():
                for said in self._sandbox.stream(command, **options):
                    self._take(said)
                    if isinstance(said, Exited):
                        return exit_code(said)
        except KeyboardInterrupt:
            say(f"left; the command may go on in {self._sandbox.id}")
            raise
        except BrokenPipeError:
            self._send("TERM")  # nobody reads what it says
            raise
        raise StreamBroken("the stream ended before the command did")

    def _take(self, said: Said) -> None:
        if isinstance(said, Started):
            self._pid = said.pid
        elif self._kept is not None:
            self._kept.add(said)
        elif isinstance(said, Stdout):
            write_all(STDERR if isinstance(said, Stderr) else STDOUT, said.data)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        kept = {number: signal.signal(number, self._signalled) for number in PASSED_ON}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    def _signalled(self, number: int, _frame: object) -> None:
        """The first control-C interrupts the command, the second kills it, the third leaves."""
        name = PASSED_ON[signal.Signals(number)]
        if name == "INT":
            self._interrupts += 1
            name = "INT" if self._interrupts == 1 else "KILL"
        if self._pid is None or self._interrupts > 2:
            raise KeyboardInterrupt
        # In a thread: we are in the middle of a read, and go on with it.
        threading.Thread(target=self._send, args=(name,), daemon=True).start()

    def _send(self, name: str) -> None:
        if self._pid is None:
            return
        try:
            self._sandbox.signal(self._pid, name)
        except WarrenError as error:
            say(f"the command could not be sent SIG{name}: {error}")


@contextlib.contextmanager
def _with_input(sandbox: Sandbox, command: Command, options: RunOptions) -> Iterator[Command]:
    """The command with our standard input: within the request if it is short text, else from a file in the sandbox."""
    begin = sys.stdin.buffer.read(INLINE_BYTES + 1)
    if len(begin) <= INLINE_BYTES and (text := _as_text(begin)) is not None:
        options["stdin"] = text
        yield command
        return
    path = f"/tmp/.warren-{secrets.token_hex(8)}"  # noqa: S108 — the sandbox's, with a name that nobody guesses
    user = options.get("user")
    same_user: RunOptions = {} if user is None else {"user": user}
    source: Any = _Chained(begin, sys.stdin.buffer)
    try:
        with Bar("standard input") as bar:
            sandbox.upload(source, path, user=user, mode=0o600, progress=bar)
        words = ["/bin/bash", "-lc", command] if isinstance(command, str) else list(command)
        yield ["/bin/bash", "-c", FROM_FILE, path, *words]
    except BaseException:
        with contextlib.suppress(WarrenError):
            sandbox.run(["rm", "-f", "--", path], **same_user)
        raise


class _Chained:
    """What was read already, and then the rest: a file that is read once."""

    def __init__(self, begin: bytes, rest: IO[bytes]) -> None:
        self._begin, self._rest = begin, rest

    def seekable(self) -> bool:
        return False

    def read(self, count: int) -> bytes:
        piece, self._begin = self._begin[:count], self._begin[count:]
        return piece or self._rest.read(count)


def _as_text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def exit_code(ended: Exited) -> int:
    """What a shell would say of a process that ended so."""
    if ended.exit_code is not None:
        return ended.exit_code
    name = str(ended.signal)
    return 128 + signal.Signals[name].value if name in signal.Signals.__members__ else errors.CANNOT_RUN
