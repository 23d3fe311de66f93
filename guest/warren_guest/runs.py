"""Runs of agents: one at a time, each asked for by task and number, so that asking twice starts one.

Knows nothing of HTTP. What runs share lives here: events, questions, totals, and where the work of a task began.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from warren_guest.accounts import Account
from warren_guest.agents.adapter import Adapter, Answer, Assignment, Command
from warren_guest.agents.changes import Changes
from warren_guest.agents.claude import Claude
from warren_guest.agents.codex import Codex
from warren_guest.agents.cursor import Cursor
from warren_guest.agents.mock import Mock
from warren_guest.agents.usage import Meter
from warren_guest.errors import RefusedError
from warren_guest.groups import Group, Groups
from warren_guest.output import Reader
from warren_guest.processes import Process, Processes, Start
from warren_guest.run import Order, Run, Shared, Started, Work
from warren_guest.run_log import RunLog
from warren_guest.run_moments import Held, Past
from warren_guest.run_questions import Questions
from warren_guest.run_texts import clip_fields
from warren_guest.sessions import Marked
from warren_guest.spawn import Program

ADAPTERS: dict[str, Callable[[Assignment], Adapter]] = {
    "mock": Mock,
    "claude": Claude,
    "codex": Codex,
    "cursor": Cursor,
}
TAG = "agent"
_MARKER = "WARREN_RUN"
# Questions that anybody in the machine may ask during a task, beside those of the agent's own output, which is bounded.
ASKED_LIMIT = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent works, as whom, and with which variables of the machine."""

    cwd: str
    account: Account
    env: Mapping[str, str]


class Runs:
    """Lives on the loop. `keep` writes a long output down and says where."""

    def __init__(
        self,
        processes: Processes,
        keep: Callable[[str], Awaitable[str | None]],
        groups: Groups | None = None,
        own_env: Mapping[str, str] | None = None,
    ) -> None:
        self._processes = processes
        self._groups = groups
        self._own_env = own_env or {}
        self._turn = asyncio.Lock()
        self._work: Work | None = None
        self._run: Run | None = None
        self._asked = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self.log = RunLog()
        self._questions = Questions(self.log.emit)
        self._shared = Shared(self.log, self._questions, keep)

    @property
    def _running(self) -> Run | None:
        return self._run if self._run is not None and not self._run.over.is_set() else None

    def facts(self) -> dict[str, object]:
        run = self._run
        told: dict[str, object] = {"task": None, "run": None, "state": "none", "outcome": None}
        if run is not None:
            told = {"task": run.order.task, "run": run.order.run, "state": run.state, "outcome": run.outcome}
        return {**told, "events": self.log.last, "waiting": self._questions.waiting}

    async def start(
        self, order: Order, assignment: Assignment, place: Place, past: Past | None = None
    ) -> tuple[bool, str]:
        """Start a run, or find the one that was started: `(whether it is new, its state)`. Raises `run_under_way`.

        Whoever asks may leave meanwhile: the run is started, or is not, as a whole. `past`: of a task that was at work
        in another machine.
        """
        adapter = ADAPTERS[order.agent](assignment)
        return await asyncio.shield(self._begin(self._start(order, adapter, assignment, place, past)))

    async def _start(
        self,
        order: Order,
        adapter: Adapter,
        assignment: Assignment,
        place: Place,
        past: Past | None,
    ) -> tuple[bool, str]:
        command = adapter.command()
        async with self._turn:
            known = self._known(order)
            if known is not None:
                return False, known
            work = await self._work_of(order.task, place)
            marker = f"{order.task}.{order.run}.{secrets.token_hex(8)}"
            own = {"TMPDIR": place.env.get("TMPDIR", "/tmp"), **command.env, **self._own_env, _MARKER: marker}  # noqa: S108
            env = {**place.env, **assignment.env, **own}
            if past is not None:
                self._go_on(past, work, assignment.session or "")
            group = self._group(marker)
            process, reader = await self._spawn(command, place, env, group)
            rest = Marked(f"{_MARKER}={marker}".encode()) if group is None else group
            started = Started(process, reader, rest, command.stdin, command.keeps_stdin)
            self._run = Run(order, adapter, started, work, self._shared)
            self._begin(self._run.follow())
            return True, "running"

    def _go_on(self, past: Past, work: Work, session: str) -> None:
        """Numbers and totals go on where they were in another machine."""
        if self.log.last == 0:
            self.log.go_on(past.events)
            self._questions.go_on(past.questions)
            work.meter.go_on(session, past.used, past.covered)

    async def hold(self) -> Held:
        """The last run stands still, with what is left of it if it has ended, until it is released."""
        async with self._turn:
            return Held(lambda: None) if self._run is None else await self._run.hold()

    def _begin(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task of ours: it goes on whoever waits for it, and `close` ends it."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: who asked was told, or has left

    def _known(self, order: Order) -> str | None:
        """The state of a run that was asked for before; None for a new one. Raises `run_under_way`."""
        run = self._run
        if run is None:
            return None
        if run.order.task == order.task and order.run <= run.order.run:
            return run.state if order.run == run.order.run else "ended"
        if self._running is not None:
            raise RefusedError("run_under_way", f"run {run.order.run} of {run.order.task} is under way")
        return None

    async def _work_of(self, task: str, place: Place) -> Work:
        """What is known of `task`; where it begins to work in another folder, what that begins with."""
        known = self._work if self._work is not None and self._work.task == task else None
        if known is not None and known.changes.cwd == place.cwd:
            return known
        clock = asyncio.get_running_loop().time
        if known is None:
            self._asked = 0
        changes = Changes(self._processes, place.account, place.env, place.cwd, clock)
        await changes.begin()
        self._work = Work(task, Meter() if known is None else known.meter, changes)
        return self._work

    def _group(self, name: str) -> Group | None:
        """A group for what a run starts; without one it is found by its environment, unless that is dropped."""
        if self._groups is not None:
            with contextlib.suppress(OSError):  # the superuser of the machine has taken them away
                return self._groups.make(name)
        return None

    async def _spawn(
        self, command: Command, place: Place, env: Mapping[str, str], group: Group | None
    ) -> tuple[Process, Reader]:
        """Start the first of the CLI's names that there is."""
        door = None if group is None else group.door
        for name in command.names:
            program = Program(
                name,
                command.args,
                env,
                place.cwd,
                place.account,
                stdin=True,
                no_new_privs=True,
                is_private=True,
                group=door,
            )
            with contextlib.suppress(ProgramMissing):
                return await self._start_program(program)
        message = f"there is no program {' or '.join(command.names)} in this machine"
        raise RefusedError("program_not_found", message, field="agent")

    async def _start_program(self, program: Program) -> tuple[Process, Reader]:
        try:
            return await self._processes.start(Start(program, tag=TAG))
        except RefusedError as exc:
            if exc.code == "program_not_found":
                raise ProgramMissing from exc
            raise

    def input(self, name: str | None, said: Answer) -> None:
        """What a person said: an answer to what waits under `name`, or an instruction. Said again, it is said once."""
        if said.kind != "instruct":
            self._questions.answer(name or "", said)
            return
        if name is not None and self._questions.is_repeated(name, said):
            return
        if self._running is None:
            raise RefusedError("no_run", "no agent is running that could be instructed")
        self._running.instruct(said.text)
        if name is not None:
            self._questions.remember(name, said)

    async def ask(self, event: str, *, kind: str, **fields: object) -> Answer:
        """Ask a person (or the host) with an event of this name while an agent runs, and wait for the answer.

        Raises `no_run` if no agent runs, or if it ends before the answer comes; `too_many_questions`. Cancelled, the
        question is withdrawn.
        """
        if self._running is None:
            raise RefusedError("no_run", "no agent is running that could ask")
        # Who asks and leaves at once costs two events each time: not more of them than are read, and not for ever.
        if not self.log.has_room:
            raise RefusedError("too_many_questions", "the host has not read what was told so far; try again later")
        if self._asked >= ASKED_LIMIT:
            raise RefusedError("too_many_questions", f"{ASKED_LIMIT} questions were asked in this task")
        self._asked += 1
        future: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        key = object()

        def deliver(answer: Answer | None) -> None:
            if not future.done():
                future.set_result(answer)

        told = clip_fields({"kind": kind, **fields})
        self._questions.ask(event, told, kind=kind, key=key, deliver=deliver)
        try:
            answer = await future
        finally:
            self._questions.withdraw(key)
        if answer is None:
            raise RefusedError("no_run", "the agent ended before there was an answer")
        return answer

    async def stop(self, grace_s: float) -> dict[str, object] | None:
        """End the run that is under way, and return how the last one ended; None if there was none."""
        async with self._turn:  # one that is being started is stopped, too
            run = self._run
        if run is None:
            return None
        await asyncio.shield(self._begin(run.stop(grace_s)))
        return run.outcome

    async def close(self) -> None:
        """The guest is ending."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class ProgramMissing(Exception):
    """A CLI has another name, or is not there at all."""
