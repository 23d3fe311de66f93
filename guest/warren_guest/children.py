"""Programs that the guest runs for itself: their output bounded, and gone with all they started when the block ends.

They are no processes of the sandbox: neither listed nor told of. `Children` is all that a caller needs of `Processes`.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any

from warren_guest import frames
from warren_guest.errors import RefusedError
from warren_guest.output import Reader
from warren_guest.processes import Process, Processes, Start
from warren_guest.sessions import kill_session
from warren_guest.spawn import Program

# The end of what a program complains about; the last lines say why it failed.
_ERRORS_KEPT = 16 * 1024
_ENDING_S = 10.0


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a program. `code` is minus the signal's number if one ended it; `is_cut`: it had more to say."""

    code: int
    output: bytes
    errors: str
    is_cut: bool = False

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace").strip()


@dataclass(slots=True)
class Running:
    """A program during its block. `errors` is the end of what it wrote to stderr so far."""

    process: Process
    reader: Reader
    errors: bytes = b""

    async def output(self) -> AsyncGenerator[bytes, None]:
        """What it writes, as it comes, to its end. The next piece is read when it is asked for."""
        while True:
            chunks = self.reader.take()
            for kind, data in chunks:
                if kind == frames.STDERR:
                    self.errors = (self.errors + data)[-_ERRORS_KEPT:]
                else:
                    yield data
            if not chunks:
                if self.reader.final is not None:
                    return
                await self.reader.wait(1.0)

    @property
    def code(self) -> int:
        """How it ended: 255 if the host of all cannot say."""
        outcome = self.process.outcome
        code = outcome.get("exit_code", -1 if "signal" in outcome else 255)
        return int(code)

    async def feed(self, data: bytes) -> None:
        """Give it all of its input. That it does not want it is its own affair."""
        with contextlib.suppress(RefusedError):
            await self.process.write([data])
        if self.process.inlet is not None:
            await self.process.inlet.end()


class Children:
    """Starts programs and ends them. Safe to use from many tasks."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    @contextlib.asynccontextmanager
    async def running(self, program: Program) -> AsyncIterator[Running]:
        """`program` during the block. After it, its session is gone, whatever happened."""
        process, reader = await self._started(program)
        try:
            yield Running(process, reader)
        finally:
            await _ended(process, reader)

    async def _started(self, program: Program) -> tuple[Process, Reader]:
        start = asyncio.get_running_loop().create_task(self._processes.start(Start(program), quiet=True))
        try:
            return await asyncio.shield(start)
        except asyncio.CancelledError:
            await outlasting(asyncio.wait({start}))
            if not start.cancelled() and start.exception() is None:
                await _ended(*start.result())
            raise

    async def run(self, program: Program, *, stdin: bytes | None = None, limit: int = 1 << 20) -> Done:
        """Run `program` to its end, or until it has written more than `limit` bytes: then it is ended."""
        async with self.running(program) as running, asyncio.TaskGroup() as group:
            feeding = None if stdin is None else group.create_task(running.feed(stdin))
            pieces, size = [], 0
            async with contextlib.aclosing(running.output()) as output:
                async for piece in output:
                    pieces.append(piece)
                    size += len(piece)
                    if size > limit:
                        break
            if feeding is not None:
                feeding.cancel()
            is_cut = size > limit
            errors = running.errors.decode("utf-8", "replace")
            return Done(0 if is_cut else running.code, b"".join(pieces)[:limit], errors, is_cut)


async def _ended(process: Process, reader: Reader) -> None:
    """End `process` and all of its session, and wait until it was reaped."""
    try:
        if not process.outcome:  # not reaped: the number is still its own
            kill_session(process.pid)
        await outlasting(_drained(reader))
    finally:
        reader.detach()


async def _drained(reader: Reader) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ENDING_S):
            while reader.take() or reader.final is None:
                if reader.final is None:
                    await reader.wait(1.0)


async def outlasting(work: Coroutine[Any, Any, Any]) -> None:
    """Wait for `work` even if this is cancelled meanwhile; the cancellation comes afterwards."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
