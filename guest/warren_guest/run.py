"""One run of an agent: its process is followed line by line, and each line becomes events, until it is over.

Whatever happens, a run ends with exactly one `agent.ended`, the last of its events, and no process of a run that was
stopped is left. While nobody reads the events, the agent waits; it does not wait once it is being stopped.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from warren_guest import frames
from warren_guest.agents import acts, values
from warren_guest.agents.acts import Act
from warren_guest.agents.adapter import Adapter, Answer
from warren_guest.agents.changes import Changes
from warren_guest.agents.usage import Meter, Usage
from warren_guest.errors import RefusedError
from warren_guest.output import Reader
from warren_guest.processes import Process
from warren_guest.run_log import RunLog
from warren_guest.run_moments import Held
from warren_guest.run_outbox import Outbox
from warren_guest.run_questions import Questions
from warren_guest.run_texts import EVENT_LIMIT, TEXT_LIMIT, Line, Lines, clip, clip_arguments, clip_fields
from warren_guest.run_tools import Tools
from warren_guest.wire import to_json

log = logging.getLogger(__name__)

# After this long without a word the adapter is asked whether anything is to be done.
QUIET_S = 15.0
# How long an agent may go on after it gave its result and was told that there is nothing more.
PARTING_S = 30.0
_BURIAL_S = 10.0
# How long the last words of a run that stands still are waited for.
_HEARING_S = 5.0
_LOOK_S = 0.005
_TAIL = 8 << 10


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for, and by which number."""

    task: str
    run: int
    agent: str
    model: str | None
    output_limit: int


class Rest(Protocol):
    """The agent and all that it started, wherever that went. Blocks for a moment; succeeds if there is none."""

    def kill(self) -> None: ...

    def freeze(self) -> None:
        """It stands still until `thaw`."""
        ...

    def thaw(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Started:
    """The agent's process."""

    process: Process
    reader: Reader
    rest: Rest
    stdin: bytes
    keeps_stdin: bool


@dataclass(frozen=True, slots=True)
class Work:
    """What is known of a task over all of its runs."""

    task: str
    meter: Meter
    changes: Changes


@dataclass(frozen=True, slots=True)
class Shared:
    """What all runs of a machine share. `keep` writes a long output down and says where."""

    log: RunLog
    questions: Questions
    keep: Callable[[str], Awaitable[str | None]]


class Run:
    """Lives on the loop. `follow` is its life; everybody else asks it for something."""

    def __init__(self, order: Order, adapter: Adapter, started: Started, work: Work, shared: Shared) -> None:
        self.order = order
        self.outcome: dict[str, object] | None = None
        self.over = asyncio.Event()
        self._adapter, self._started, self._work, self._shared = adapter, started, work, shared
        self._log = shared.log
        self._outbox = Outbox()
        self._tools = Tools(time.monotonic)
        self._lines = {frames.STDOUT: Lines(), frames.STDERR: Lines()}
        self._session = ""
        self._finished: acts.Finished | None = None
        self._is_stopping = False
        self._output_bytes = 0
        self._is_over_limit = False
        self._tail = b""
        self._parting: asyncio.TimerHandle | None = None
        self._is_hearing = self._is_held = False

    @property
    def state(self) -> str:
        return "ended" if self.over.is_set() else "running"

    # What others ask for.

    def instruct(self, text: str) -> None:
        """Raises `not_possible`, or `no_run` if it has given its result and is about to end."""
        if self._outbox.is_closed and self._started.keeps_stdin:
            raise RefusedError("no_run", "the agent has given its result and hears no more")
        for act in self._adapter.instruct(text):
            self._do_nowait(act)

    async def stop(self, grace_s: float) -> None:
        """Ask the agent to end, wait `grace_s`, kill all of it, and wait until the run is over. May be called twice."""
        if not self._is_stopping and not self.over.is_set():
            self._is_stopping = True
            self._log.wake()
            for act in self._adapter.interrupt():
                self._do_nowait(act)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.over.wait()
        self._kill()
        await self.over.wait()

    async def hold(self) -> Held:
        """Let all of it stand still, with everything told that it has said. Cancelled, it goes on."""
        rest = self._started.rest

        def release() -> None:
            self._is_held = False
            rest.thaw()

        await self._heard()  # so that it does not stand still while git looks at its last change
        self._is_held = True
        freezing = asyncio.ensure_future(asyncio.to_thread(rest.freeze))
        try:
            await asyncio.shield(freezing)
            await self._heard()
        except BaseException:
            await asyncio.wait({freezing})  # what it is still about to stop would stand still for ever
            release()
            raise
        used = self._work.meter.told(self._session) if self._adapter.totals_survive else Usage()
        session, folders = self._session or None, self._adapter.session_folders
        return Held(release, self.order.run, self._log.last, session, used, folders)

    async def _heard(self) -> None:
        """Returns when all is told that it has said; or after a while: if nobody reads, less of it is covered."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HEARING_S):
                while self._is_hearing or self._started.process.has_unread(self._started.reader):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S)

    def _kill(self) -> None:
        """Kill the agent, and what it started wherever that went."""
        if not self.over.is_set():
            # Nobody reads its input any more, even if somebody who got away holds it open: it must not be waited for.
            self._outbox.close()
            self._started.process.kill()
            self._started.rest.kill()

    # Its life.

    async def follow(self) -> None:
        """From the first line to `agent.ended`."""
        order, process = self.order, self._started.process
        self._emit("agent.started", {"agent": order.agent, "version": None, "model": order.model, "pid": process.pid})
        writer = asyncio.get_running_loop().create_task(self._outbox.drain(process))
        error = None
        try:
            self._outbox.put(self._started.stdin)
            if not self._started.keeps_stdin:
                self._outbox.close()
            await self._read_all()
        except Exception:
            log.exception("run %d of %s failed", order.run, order.task)
            error = "internal"
            await self._bury()
        finally:
            self._outbox.close()
            writer.cancel()
            self._end(error)

    def _end(self, error: str | None) -> None:
        """Nothing here waits: it also happens when the guest itself is ending."""
        if self._parting is not None:
            self._parting.cancel()
        self._started.reader.detach()
        if error is not None or self._is_stopping or self._is_over_limit:
            self._kill()
        self._work.meter.settle()
        self._shared.questions.withdraw_all()
        self.outcome = {"run": self.order.run, **self._outcome(error)}
        self._emit("agent.ended", self.outcome)
        self.over.set()

    def _outcome(self, error: str | None) -> dict[str, object]:
        ended = self._started.process.outcome
        finished = self._finished
        facts: dict[str, object] = {"exit_code": ended.get("exit_code"), "signal": ended.get("signal")}
        facts["output_bytes"] = self._output_bytes
        facts["output_tail"] = self._tail.decode("utf-8", "replace") if finished is None else None
        if self._is_over_limit:
            return {"outcome": "failure", "result": None, "error": "output_bytes", **facts}
        if finished is not None and finished.is_success and error is None:
            return {"outcome": "success", "result": finished.result, "error": None, **facts}
        if self._is_stopping:
            return {"outcome": "stopped", "result": None, "error": finished and finished.error, **facts}
        error = error or (finished.error if finished is not None else "the agent ended without a result")
        return {"outcome": "failure", "result": None, "error": error, **facts}

    async def _read_all(self) -> None:
        reader = self._started.reader
        while not self._is_over_limit:
            self._is_hearing = bool(chunks := reader.take())
            for kind, data in chunks:
                await self._hear(kind, data)
            self._is_hearing = False
            if not chunks:
                if reader.final is not None:
                    break
                if not await reader.wait(QUIET_S):
                    await self._do_all(self._adapter.quiet())
        if self._is_over_limit:
            await self._bury()
        for kind, lines in self._lines.items():
            await self._say(kind, lines.finish())

    async def _bury(self) -> None:
        """Kill all of it, and wait for its end without listening any more."""
        self._kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BURIAL_S):
                while self._started.reader.take() or self._started.reader.final is None:
                    await self._started.reader.wait(0.5)

    async def _hear(self, kind: int, data: bytes) -> None:
        self._tail = (self._tail + data)[-_TAIL:]
        self._output_bytes += len(data)
        if self._output_bytes > self.order.output_limit:
            self._is_over_limit = True
            return
        await self._say(kind, self._lines[kind].feed(data))

    async def _say(self, kind: int, lines: Iterable[Line]) -> None:
        """Words of the agent are understood; the rest is told as it is, several lines at once."""
        stream = "stdout" if kind == frames.STDOUT else "stderr"
        unknown: list[str] = []
        size = 0
        for line in lines:
            if kind == frames.STDOUT and await self._understand(line):
                continue
            text, is_cut = clip(line.data.decode("utf-8", "replace"))
            length = len(text.encode()) + 1
            if unknown and (size + length > TEXT_LIMIT or is_cut):
                await self._tell("agent.log", {"stream": stream, "text": "\n".join(unknown)})
                unknown, size = [], 0
            if is_cut or line.is_cut:
                await self._tell("agent.log", {"stream": stream, "text": text, "truncated": True})
            elif text.strip():
                unknown.append(text)
                size += length
        if unknown:
            await self._tell("agent.log", {"stream": stream, "text": "\n".join(unknown)})

    async def _understand(self, line: Line) -> bool:
        """Do what a line of the agent means. False if it is none of its words."""
        if line.is_cut or not line.data.startswith(b"{"):
            return False
        told = values.parse(line.data)
        meant = None if told is None else self._adapter.read(told)
        if meant is None:
            return False
        await self._do_all(meant)
        return True

    # Acts.

    async def _do_all(self, wanted: Iterable[Act]) -> None:
        for act in wanted:
            match act:
                case acts.Tell():
                    await self._tell(act.kind, act.fields)
                case acts.ToolStart():
                    await self._tell("agent.tool", self._tools.start(act))
                case acts.ToolEnd():
                    await self._tool_end(act)
                case acts.SessionIs():
                    self._session = clip(act.session, 256)[0]
                    facts = {"session": act.session, "model": act.model, "version": act.version}
                    await self._tell("agent.session", facts)
                case acts.Used():
                    self._work.meter.tell(self._session, act.usage)
                    await self._tell_usage(is_final=True)
                case acts.Using():
                    self._work.meter.count(act.usage)
                    await self._tell_usage(is_final=False)
                case acts.Send():
                    await self._outbox.room()
                    self._do_nowait(act)
                case _:
                    await self._room()
                    self._do_nowait(act)

    def _do_nowait(self, act: Act) -> None:
        match act:
            case acts.Ask():
                self._ask(act)
            case acts.Withdraw():
                self._shared.questions.withdraw(act.key)
            case acts.Send():
                self._outbox.put(act.data)
            case acts.CloseInput():
                self._outbox.close()
                self._part()
            case acts.Signal():
                with contextlib.suppress(RefusedError):  # it has just ended
                    self._started.process.signal(act.number, group=True)
            case acts.Finished():
                self._finished = act

    def _ask(self, act: acts.Ask) -> None:
        def deliver(answer: Answer | None) -> None:
            if answer is not None:
                for reply in self._adapter.answer(act.key, answer):
                    self._do_nowait(reply)

        arguments, is_cut = clip_arguments(act.arguments)
        fields = clip_fields({"kind": act.kind, "text": act.text, "tool": act.tool and clip(act.tool, 256)[0]})
        cut = {"truncated": True} if is_cut else {}
        told = {**fields, "arguments": arguments, **cut}
        try:
            self._shared.questions.ask("approval.requested", told, kind=act.kind, key=act.key, deliver=deliver)
        except RefusedError as exc:
            deliver(Answer("reject", exc.message))

    def _part(self) -> None:
        if self._parting is None:
            self._parting = asyncio.get_running_loop().call_later(PARTING_S, self._kill)

    async def _tool_end(self, act: acts.ToolEnd) -> None:
        facts, kind = self._tools.end(act)
        text, is_cut = clip(act.output)
        facts["output"], facts["output_bytes"] = text, len(act.output.encode("utf-8", "replace"))
        if is_cut:
            facts["truncated"] = True
            facts["file"] = await self._shared.keep(act.output)
        await self._tell("agent.tool", facts)
        if kind != acts.READ and not (self._is_stopping or self._is_held):
            await self._tell_changes()

    async def _tell_changes(self) -> None:
        try:
            change = await self._work.changes.news()
        except RefusedError as exc:  # the folder is gone, or no process can be started
            log.info("the workspace cannot be looked at: %s", exc)
            return
        if change is not None:
            facts = {"files": change.files, "insertions": change.insertions, "deletions": change.deletions}
            await self._tell("file.diff", {"hash": change.hash, **facts})

    async def _tell_usage(self, *, is_final: bool) -> None:
        await self._tell("agent.usage", {**self._work.meter.total.facts(), "is_final": is_final})

    async def _tell(self, kind: str, fields: Mapping[str, object]) -> None:
        """Tell it when there is room. What an agent floods us with while it is being stopped is not told."""
        await self._room()
        if not self._log.is_overfull:
            self._emit(kind, fields)

    async def _room(self) -> None:
        while not self._log.has_room and not self._is_stopping:
            await self._log.acknowledged()

    def _emit(self, kind: str, fields: Mapping[str, object]) -> None:
        data = clip_fields(fields)
        if len(to_json(data)) > EVENT_LIMIT:  # a text of control characters is six times as long in JSON
            data = clip_fields(fields, TEXT_LIMIT // 8)
        self._log.emit(kind, data)
