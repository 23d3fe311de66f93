"""What comes in pieces: a command's output, a sandbox's events, a file's bytes. The two clients carry the pieces."""

import base64
import hashlib
import io
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Generic, Protocol, TypeVar

from warren import calls, task_calls
from warren.calls import Call
from warren.errors import Corrupted, ProtocolError, StreamBroken, WarrenError, error_of
from warren.models import Connection, Event, Exited, Result, Said, Started, Stderr, Stdout, Transfer, read
from warren.retries import Attempts, Retries
from warren.sse import Message, Parser
from warren.task_models import TaskEvent

PIECE_BYTES = 1 << 18
KEPT_BYTES = 16 << 20  # of each of a command's streams, in a `Result`
# Of an error within a stream, whose own status went before it; what is not here is a fault of the other side.
STATUS_OF = {
    **dict.fromkeys(("bad_request", "bad_field", "unknown_user", "cwd_not_found", "program_not_found"), 400),
    **dict.fromkeys(("program_not_executable", "no_pty", "no_stdin", "bad_path"), 400),
    **dict.fromkeys(("wrong_state", "sandbox_paused", "sandbox_stopped", "process_ended"), 409),
    "bad_ticket": 401,
    "forbidden": 403,
    "permission_denied": 403,
    "not_found": 404,
    "deadline_passed": 408,
    "too_many_processes": 429,
    "rate_limited": 429,
}

Source = bytes | str | Path | IO[bytes]  # a text is the name of a file
Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if that is known


class HasNumber(Protocol):
    @property
    def seq(self) -> int: ...


Numbered = TypeVar("Numbered", bound=HasNumber)


class Execution:
    """The events of one command. The last one is `Exited`, or an error is raised: it never ends quietly."""

    def __init__(self) -> None:
        self._parser = Parser()
        self.is_over = False

    def feed(self, data: bytes) -> Iterator[Said]:
        for message in self._parser.feed(data):
            if (said := self._said(message)) is not None:
                yield said

    def end(self) -> None:
        """The stream has ended: so must the command have."""
        if not self.is_over:
            raise StreamBroken("the stream ended before the command did; how the command ends is not known")

    def _said(self, message: Message) -> Said | None:
        told = message.data if isinstance(message.data, dict) else {}
        match message.kind:
            case "start":
                return Started(int(told.get("pid", 0)))
            case "stdout":
                return Stdout(_decoded(told))
            case "stderr":
                return Stderr(_decoded(told))
            case "exit":
                self.is_over = True
                return Exited(told.get("exit_code"), told.get("signal"), int(told.get("duration_ms", 0)))
            case "error":
                raise error_within(told)
        return None  # something that a newer gateway tells


class Collected:
    """What a command said, for a `Result`. What exceeds `kept_bytes` is dropped, and the result says so."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._output = {Stdout: bytearray(), Stderr: bytearray()}
        self._is_truncated = False
        self._exited: Exited | None = None

    def add(self, said: Said) -> None:
        if isinstance(said, Stdout):
            kept = self._output[type(said)]
            room = max(0, self._kept_bytes - len(kept))
            kept += said.data[:room]
            self._is_truncated |= len(said.data) > room
        elif isinstance(said, Exited):
            self._exited = said

    def result(self) -> Result:
        if self._exited is None:
            raise StreamBroken("the command did not say how it ended")
        stdout, stderr = (data.decode("utf-8", "replace") for data in self._output.values())
        ended = self._exited
        return Result(ended.exit_code, stdout, stderr, ended.signal, ended.duration_ms, self._is_truncated)


@dataclass(frozen=True)
class Kind(Generic[Numbered]):
    """What a sandbox or a task tells with numbers: its name, how it is read, and what to ask behind a number."""

    name: str
    of: type[Numbered]
    stream: Callable[[str, int], Call[None]]
    page: Callable[[str, int], Call[list[Numbered]]]
    is_last: Callable[[Numbered], bool] = lambda _: False  # behind it there is nothing to wait for


EVENTS = Kind("events", Event, calls.event_stream, calls.events)
TASK_EVENTS = Kind(
    "events", TaskEvent, task_calls.event_stream, task_calls.events, is_last=lambda event: event.is_final
)


def connections(verdict: str | None) -> Kind[Connection]:
    """All that a sandbox tried to reach, or only what was allowed, or refused."""
    return Kind(
        "connections", Connection, partial(calls.egress_stream, verdict=verdict), partial(calls.egress, verdict=verdict)
    )


class Following(Generic[Numbered]):
    """The events of a sandbox or a task, or what one tried to reach, over as many connections as it takes, each once.

    All attempts are there again after a new one, and after a connection that was heard for longer than `patience_s`.
    """

    def __init__(
        self,
        kind: Kind[Numbered],
        whose: str,
        after: int,
        retries: Retries,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.last = after
        self.is_over = False  # the last one has come
        self._kind: Kind[Numbered] = kind
        self._whose = whose
        self._patience_s, self._clock = retries.patience_s, clock
        self._first_heard: float | None = None  # of this connection
        self._attempts = Attempts(retries, is_repeatable=True)
        self._parser = Parser()

    def call(self) -> Call[None]:
        """What to ask now: all behind what has come."""
        self._parser = Parser()  # half an event of the connection before is asked for again
        self._first_heard = None
        return self._kind.stream(self._whose, self.last)

    def page(self) -> Call[list[Numbered]]:
        """As `call`, for what there is now."""
        return self._kind.page(self._whose, self.last)

    def feed(self, data: bytes) -> Iterator[Numbered]:
        self._heard()
        for message in self._parser.feed(data):
            yield from self.new([read(self._kind.of, message.data)])

    def new(self, told: list[Numbered]) -> Iterator[Numbered]:
        for one in told:
            if one.seq > self.last and not self.is_over:
                self.last = one.seq
                self._attempts.got_on()
                self.is_over |= self._kind.is_last(one)
                yield one

    def wait_s(self, error: WarrenError) -> float:
        return self._attempts.wait_s(error)

    def ended_early(self) -> float:
        """The stream ended in order, and what it tells of has not: its host goes away, or another takes over."""
        return self.wait_s(StreamBroken(f"the {self._kind.name} of {self._whose} ended, and it has not"))

    def _heard(self) -> None:
        # The first words alone say little: a server that always hangs up behind them would be asked for ever.
        now = self._clock()
        if self._first_heard is None:
            self._first_heard = now
        elif now - self._first_heard > self._patience_s:
            self._attempts.got_on()


class Carried:
    """Bytes on their way, counted, hashed and told."""

    def __init__(self, progress: Progress | None, total: int | None) -> None:
        self.total = total
        self._progress = progress
        self.bytes = 0
        self._hash = hashlib.sha256()

    def saw(self, data: bytes) -> bytes:
        self.bytes += len(data)
        self._hash.update(data)
        if self._progress is not None:
            self._progress(self.bytes, self.total)
        return data

    def done(self, arrived: int | None = None, sha256: str | None = None) -> Transfer:
        """All of it is there. `arrived` and `sha256` are what others say that it was."""
        found = Transfer(self.bytes, self._hash.hexdigest())
        if arrived is not None and arrived != found.bytes:
            raise Corrupted(f"{found.bytes} bytes were sent and {arrived} arrived")
        if sha256 is not None and sha256.lower() != found.sha256:
            raise Corrupted(f"the SHA-256 should be {sha256.lower()} and is {found.sha256}")
        return found


class Upload:
    """The source of an upload: bytes, the name of a file, or an open one from where it stands."""

    def __init__(self, source: Source, progress: Progress | None) -> None:
        self._progress = progress
        self._file, self._is_ours = _opened(source)
        self._begin = self._file.tell() if self._file.seekable() else None
        self.size = None if self._begin is None else self._file.seek(0, os.SEEK_END) - self._begin
        self.rewind()

    @property
    def is_repeatable(self) -> bool:
        return self._begin is not None

    def rewind(self) -> None:
        """To the beginning, for the first attempt and each one after it."""
        self.carried = Carried(self._progress, self.size)
        if self._begin is not None:
            self._file.seek(self._begin)

    def piece(self) -> bytes:
        """The next bytes; none at the end. Never more than was announced: a file may grow meanwhile."""
        left = PIECE_BYTES if self.size is None else min(PIECE_BYTES, self.size - self.carried.bytes)
        return self.carried.saw(self._file.read(left)) if left else b""

    def close(self) -> None:
        if self._is_ours:
            self._file.close()


class Download:
    """The target of a download. A file of that name appears when all of it is there, and not before."""

    def __init__(self, target: str | Path | IO[bytes]) -> None:
        self._final = Path(target) if isinstance(target, str | Path) else None
        self._new = None if self._final is None else _beside(self._final)
        try:
            self._file: IO[bytes] = target if self._new is None else self._new.open("xb")  # type: ignore[assignment]
        except OSError as error:
            error.filename = str(self._final)  # nobody asked for the name that it has until then
            raise

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def keep(self) -> None:
        if self._new is not None and self._final is not None:
            self._file.close()
            self._new.replace(self._final)

    def close(self) -> None:
        """What was not kept is removed."""
        if self._new is not None:
            try:
                self._file.close()
            finally:
                self._new.unlink(missing_ok=True)


def tell(said: Said, on_stdout: Callable[[bytes], object] | None, on_stderr: Callable[[bytes], object] | None) -> None:
    """Hand output to whoever wants it at once."""
    if isinstance(said, Stderr):
        if on_stderr is not None:
            on_stderr(said.data)
    elif isinstance(said, Stdout) and on_stdout is not None:
        on_stdout(said.data)


def signal_command(pid: int, name: str) -> list[str]:
    return ["/bin/bash", "-c", 'kill -s "$1" -- "-$2"', "kill", name.removeprefix("SIG"), str(pid)]


def total_of(headers: Mapping[str, str]) -> int | None:
    length = headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else None


def error_within(told: dict[str, Any]) -> WarrenError:
    """An error that comes in a stream: its status went before it."""
    details = dict(told)
    code, message = str(details.pop("code", "internal")), str(details.pop("message", "no reason was given"))
    return error_of(STATUS_OF.get(code, 500), code, message, details, None)


def _beside(target: Path) -> Path:
    """A name that no other download has, also not one to the same target."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")


def _decoded(told: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(told["data"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise ProtocolError("a piece of output is not in base64") from None


def _opened(source: Source) -> tuple[IO[bytes], bool]:
    if isinstance(source, bytes):
        return io.BytesIO(source), True
    if isinstance(source, str | Path):
        return Path(source).open("rb"), True
    return source, False
