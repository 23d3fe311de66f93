"""Processes: started, read, written to, signalled and remembered for a while.

A process belongs to the machine, not to who started it. Its stream ends after all of its own output: it has been
reaped and its pipes are at their end, or, when something that it left behind holds them open, `LINGER_S` later.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from warren_guest import frames
from warren_guest.errors import RefusedError
from warren_guest.output import Output, Reader
from warren_guest.pumps import Inlet, Pump
from warren_guest.reaper import Reaper
from warren_guest.sessions import kill_session
from warren_guest.spawn import Child, Program, Shield, spawn

LIVE_LIMIT = 1000
ENDED_KEPT_S = 30.0
ENDED_KEPT = 100
# How long what a process left behind may still write into its stream.
LINGER_S = 0.25
_TOLD_CHARS = 4096  # of a command line in an event; the host keeps no more of one
KEEPALIVE_S = 15.0

Facts = dict[str, object]


@dataclass(frozen=True, slots=True)
class Start:
    """A request to start `program`. `deadline` is in the loop's time."""

    program: Program
    tag: str | None = None
    deadline: float | None = None


def _clipped(args: Iterable[str]) -> list[str]:
    """As much of a command line as an event may have: all are kept for a while, and who wants the rest may ask."""
    told: list[str] = []
    left = _TOLD_CHARS
    for arg in args:
        if len(arg) > left:
            return [*told, arg[:left] + "…"]
        told.append(arg)
        left -= len(arg) + 1
    return told


class Process:
    """One process and what is kept of it. Lives on the loop."""

    def __init__(
        self, start: Start, child: Child, on_activity: Callable[[], None], on_end: Callable[["Process"], None]
    ) -> None:
        self.start = start
        self.pid = child.pid
        self.output = Output()
        self.inlet = None if child.stdin is None else Inlet(child.stdin)
        self.started_ms = time.time_ns() // 1_000_000
        self.ended_ms: int | None = None
        self.outcome: dict[str, int | str] = {}
        self.duration_ms = 0
        self._began = time.monotonic()
        self._on_activity = on_activity
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._is_reaped = False
        self._lingered = False
        self._pump = Pump(self.output, child.outputs, self._on_output)
        self._deadline = None if start.deadline is None else self._loop.call_at(start.deadline, self._on_deadline)

    @property
    def is_ended(self) -> bool:
        return self.ended_ms is not None

    def has_unread(self, reader: Reader) -> bool:
        """Whether it has written something that this reader has not taken."""
        return self._pump.has_waiting or reader.position < self.output.total

    def facts(self) -> Facts:
        program = self.start.program
        ended: Facts = {} if self.ended_ms is None else {"ended_ms": self.ended_ms, **self.outcome}
        return {
            "pid": self.pid,
            "cmd": program.cmd,
            "args": list(program.args),
            "cwd": program.cwd,
            "user": program.account.name,
            "tag": self.start.tag,
            "pty": program.pty is not None,
            "started_ms": self.started_ms,
            "output_bytes": self.output.total,
            **ended,
        }

    def reaped(self, status: int) -> None:
        """The process is over; its output may not be."""
        self._is_reaped = True
        self.outcome = outcome_of(status)
        self.duration_ms = int((time.monotonic() - self._began) * 1000)
        if self._deadline is not None:
            self._deadline.cancel()
        self._pump.note_owed()
        self._loop.call_later(LINGER_S, self._on_lingered)
        self._end_if_over()

    def _on_output(self) -> None:
        self._on_activity()
        self._end_if_over()

    def _on_lingered(self) -> None:
        self._lingered = True
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.is_ended or not self._is_reaped:
            return
        if self._pump.is_open and (not self._lingered or self._pump.is_owed):
            return
        self.ended_ms = time.time_ns() // 1_000_000
        self.output.finish(frames.facts_frame(frames.END, {**self.outcome, "duration_ms": self.duration_ms}))
        self._pump.discard()
        if self.inlet is not None:
            self.inlet.close()
        self._on_end(self)

    def _on_deadline(self) -> None:
        # Streams are given their last frame before the kill, so that its `end` can never come first.
        self.output.finish_attached(frames.facts_frame(frames.DEADLINE, {}))
        kill_session(self.pid)

    def signal(self, number: int, *, group: bool) -> None:
        """Raises `process_ended`. The pid is still its own: only the loop reaps, and this runs on the loop."""
        try:
            if self._is_reaped:
                raise ProcessLookupError
            (os.killpg if group else os.kill)(self.pid, number)
        except ProcessLookupError as exc:
            raise RefusedError("process_ended", f"process {self.pid} has ended") from exc

    def kill(self) -> None:
        """Kill it and its whole session. Nothing if it is over: its number may be another's by now."""
        if not self._is_reaped:
            kill_session(self.pid)

    def resize(self, cols: int, rows: int) -> None:
        if self.start.program.pty is None or self.inlet is None:
            raise RefusedError("no_pty", f"process {self.pid} has no terminal")
        self.inlet.set_window(cols, rows)

    async def write(self, pieces: list[bytes]) -> None:
        """Wait until the process, or the pipe to it, has taken all of `pieces`."""
        inlet = self.input(eof=False)
        try:
            await inlet.write(pieces)
            self._on_activity()
        except RefusedError:
            self.input(eof=False)  # if the process is gone, this is the better reason
            raise

    def input(self, *, eof: bool) -> Inlet:
        """Where its input goes, if it has any and, with `eof`, if that can be closed."""
        if self.inlet is None:
            raise RefusedError("no_stdin", f"process {self.pid} was started without stdin")
        if eof and self.start.program.pty is not None:
            raise RefusedError("no_stdin", "a terminal has no end of input to give; send the byte 4 instead")
        if self._is_reaped:
            raise RefusedError("process_ended", f"process {self.pid} has ended")
        return self.inlet

    def abandon(self) -> None:
        """Close what is open. The guest is ending."""
        self._pump.close()
        if self.inlet is not None:
            self.inlet.close()


def outcome_of(status: int) -> dict[str, int | str]:
    """A wait status in the contract's words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return {"exit_code": code}
    try:
        return {"signal": signal.Signals(-code).name}
    except ValueError:
        return {"signal": f"SIG{-code}"}  # a real-time signal between the two that have names


async def tell(process: Process, reader: Reader) -> AsyncGenerator[bytes, None]:
    """The frame stream of one reader, ending after its last frame."""
    facts = {"pid": process.pid, "started_ms": process.started_ms, "output_bytes": reader.position}
    ahead = frames.facts_frame(frames.START, facts)
    while True:
        chunks = reader.take()
        if chunks or ahead:
            yield ahead + frames.output_frames(chunks)
            ahead = b""
        elif reader.final is not None:
            yield reader.final
            return
        elif not await reader.wait(KEEPALIVE_S):
            yield frames.frame(frames.KEEPALIVE)


class Processes:
    """Every process of the machine that was asked for, by pid, oldest first."""

    def __init__(
        self, reaper: Reaper, threads: Executor, shield: Callable[[], Shield], on_event: Callable[..., None]
    ) -> None:
        self._reaper = reaper
        self._threads = threads
        self._shield = shield
        self._on_event = on_event
        self._processes: dict[int, Process] = {}
        self._starting: set[asyncio.Task[tuple[Process, Reader]]] = set()
        self._live = 0
        self._active_at = time.monotonic()

    @property
    def live(self) -> int:
        return self._live

    @property
    def quiet_ms(self) -> int:
        """For how long no process has been started, has ended, written or read; since our own start if none has."""
        return int((time.monotonic() - self._active_at) * 1000)

    def note_activity(self) -> None:
        """Something was done through the guest that no process of a caller's shows."""
        self._note_activity()

    def _note_activity(self) -> None:
        self._active_at = time.monotonic()

    async def start(self, start: Start, *, quiet: bool = False) -> tuple[Process, Reader]:
        """Start a process, with a reader of its output from the first byte. Detach the reader.

        The process starts and is listed even if this is cancelled. A `quiet` one is neither listed nor told of.
        """
        if self._live >= LIVE_LIMIT:
            raise RefusedError("too_many_processes", f"{LIVE_LIMIT} processes are running")
        self._live += 1
        task = asyncio.get_running_loop().create_task(self._start(start, quiet=quiet))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_leave)
            raise

    async def _start(self, start: Start, *, quiet: bool) -> tuple[Process, Reader]:
        number = self._reaper.expect()
        loop = asyncio.get_running_loop()
        try:
            child = await loop.run_in_executor(self._threads, spawn, start.program, self._shield())
            told = (lambda: None, self._forget_quiet) if quiet else (self._note_activity, self._ended)
            process = Process(start, child, *told)
            reader = process.output.attach(0)
            self._reaper.claim(process.pid, process.reaped, number)
        except BaseException:
            self._live -= 1
            raise
        finally:
            self._reaper.expected()
        if not quiet:
            # Taken out first: a pid that was used before keeps its old place otherwise.
            self._processes.pop(process.pid, None)
            self._processes[process.pid] = process
            self._note_activity()
            facts = process.facts()
            begun = {name: facts[name] for name in ("pid", "cmd", "user", "tag")}
            self._on_event("process_started", {**begun, "args": _clipped(start.program.args)})
        return process, reader

    def _forget_quiet(self, _process: Process) -> None:
        self._live -= 1

    def _ended(self, process: Process) -> None:
        self._live -= 1
        self._note_activity()
        facts = {"pid": process.pid, **process.outcome, "duration_ms": process.duration_ms}
        self._on_event("process_ended", facts)
        asyncio.get_running_loop().call_later(ENDED_KEPT_S, self._forget, process)
        ended = [known for known in self._processes.values() if known.is_ended]
        for oldest in sorted(ended, key=lambda known: known.ended_ms or 0)[:-ENDED_KEPT]:
            self._forget(oldest)

    def _forget(self, process: Process) -> None:
        if self._processes.get(process.pid) is process:
            del self._processes[process.pid]

    def all(self) -> Iterable[Process]:
        return self._processes.values()

    def find(self, key: str) -> Process:
        """The process with this pid, or the newest with this tag (`tag:NAME`). Raises `not_found`."""
        if key.startswith("tag:"):
            for process in reversed(self._processes.values()):
                if process.start.tag == key[4:]:
                    return process
        elif key.isascii() and key.isdigit() and len(key) < 10:
            process_or_none = self._processes.get(int(key))
            if process_or_none is not None:
                return process_or_none
        raise RefusedError("not_found", f"there is no process {key[:80]}")

    async def settled(self) -> None:
        """Let what is being started arrive."""
        await asyncio.gather(*self._starting, return_exceptions=True)

    async def close(self) -> None:
        """Let what is being started arrive, then close every descriptor."""
        await self.settled()
        for process in self._processes.values():
            process.abandon()


def _leave(task: asyncio.Task[tuple[Process, Reader]]) -> None:
    with contextlib.suppress(RefusedError, asyncio.CancelledError):
        _process, reader = task.result()
        reader.detach()
