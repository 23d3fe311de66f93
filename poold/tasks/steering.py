"""Beside a task's work: pauses, answers, its time, and what others do to its sandbox. Decides, then acts."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial

from contract.errors import WarrenError, WrongState
from contract.models import Sandbox
from contract.states import ASLEEP, State
from contract.task_states import TaskEvent, TaskState
from poold.ledger import events, questions, tasks
from poold.ledger.questions import Question
from poold.ledger.tasks import Row
from poold.tasks.continuing import go_on
from poold.tasks.deliver import deliver
from poold.tasks.judge import Capped
from poold.tasks.life import OVER, Life
from poold.tasks.plan import Act, Facts, next_ms, plan

log = logging.getLogger("poold.tasks")

TICK_S = 5.0  # so often what a task's time has come to is written down
IDLE_S = 60.0  # of a task that waits nothing has to be written down
RETRY_S = 3.0
LEAST_S = 0.02  # between two looks: a machine may make a lot of noise
WORKING = (TaskState.PLANNING, TaskState.RUNNING)
STATES = frozenset({*State, "resumed"})  # kinds that tell of a sandbox's new state


@dataclass
class Steering:
    """Of one task, until it is cancelled."""

    life: Life
    _seen: State | None = None  # of the sandbox, as we left it
    _awake_since_ms: int = 0
    _wall_written: int = -1

    async def steer(self) -> None:
        while True:
            self.life.changed.clear()
            try:
                wait_s = await self._look()
            except WarrenError as error:
                log.warning("a task could not be steered", extra={"task": self.life.id, "why": str(error)})
                wait_s = RETRY_S
            await asyncio.sleep(LEAST_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.life.changed.wait()

    async def _look(self) -> float:
        """Decide and act; returns how long nothing has to be decided, unless something happens."""
        row = await self.life.row()
        if row.ending is not None:
            self.life.ending.set()
        sandbox = None if row.task.phase == "claim" else await self.life.sandbox(row)
        if sandbox is not None:
            row = await self._compare(row, sandbox)
        elif row.task.phase == "finish":
            self.life.lose("it never had a machine")
        await self._count(row)
        row, answers = await self._settle(row)
        facts = self._facts(row, sandbox, answers)
        for act in plan(facts):
            await self._do(act, row)
        return self._wait_s(row, facts)

    async def _settle(self, row: Row) -> tuple[Row, list[Question]]:
        """The answers that need the machine. Those about spending do not: it must not spend on before a no counts."""
        undelivered = partial(questions.undelivered, task_id=self.life.id)
        answers = await self.life.tools.read(undelivered)
        about_spending = [each for each in answers if each.kind == "spend"]
        if not about_spending:
            return row, answers
        for question in about_spending:
            await deliver(self.life, row, question)
        return await self.life.row(), [each for each in answers if each.kind != "spend"]

    def _facts(self, row: Row, sandbox: Sandbox | None, answers: list[Question]) -> Facts:
        task = row.task
        return Facts(
            state=task.state,
            sandbox=None if sandbox is None else seen_as(sandbox.state),
            is_held=row.is_held,
            is_ending=row.ending is not None and not self._may_wait(row),
            open=task.waiting,
            has_answers=bool(answers),
            pause_after_ms=1000 * task.approvals.pause_after_sec,
            awake_since_ms=self._awake_since_ms,
            can_save=self.life.tools.can_save,
            now_ms=self.life.tools.now_ms(),
        )

    def _may_wait(self, row: Row) -> bool:
        """A task that has done its work may have to ask before it is pushed."""
        return row.ending is not None and row.ending["event"] == TaskEvent.COMPLETE and bool(row.kept.get("asks"))

    async def _compare(self, row: Row, sandbox: Sandbox) -> Row:
        """What others did to the sandbox: who pauses it pauses its task, who resumes it resumes that."""
        life, seen, now = self.life, self._seen, seen_as(sandbox.state)
        if now in OVER:
            return row if life.gone is not None else await self._lost(row, sandbox)
        if now in (State.RUNNING, State.PAUSED):
            self._seen = now
            (life.awake.set if now is State.RUNNING else life.awake.clear)()
        if seen is State.RUNNING and now is State.PAUSED:
            await self._tell("sandbox.paused", sandbox)
            return await self._hold(row, True)
        if seen is State.PAUSED and now is State.RUNNING:
            self._awake_since_ms = life.tools.now_ms()
            await self._tell("sandbox.resumed", sandbox)
            return await self._hold(row, False)
        return row

    async def _hold(self, row: Row, is_held: bool) -> Row:
        if row.is_held is is_held:
            return row
        return await self.life.write(partial(tasks.change, task_id=row.id, is_held=int(is_held)))

    async def _lost(self, row: Row, sandbox: Sandbox) -> Row:
        """The task goes on in another machine, or ends."""
        write = partial(go_on, task_id=row.id, sandbox=sandbox, now_ms=self.life.tools.now_ms())
        if await self.life.write(write):
            self._seen = None
            self.life.continued()
            return await self.life.row()
        why = f"its sandbox is {sandbox.state}: {sandbox.reason}"
        told = ("sandbox.lost", {"sandbox": sandbox.id, "reason": sandbox.reason})
        await self.life.end(TaskEvent.FAIL, {"code": "machine", "message": why}, told)
        self.life.lose(why)
        return row

    async def _count(self, row: Row) -> None:
        """The task's time: it passes while it works. A cap on it is reached here and nowhere else."""
        life, task = self.life, row.task
        life.wall.run(is_working(task.state, self._seen))
        over = Capped("wall_sec", task.caps.wall_sec, life.wall.ms / 1000)
        if task.state in WORKING and row.ending is None and over.value >= over.limit:
            await life.end(TaskEvent.FAIL, over.reason, ("cap.reached", over.data))
        if life.wall.ms - self._wall_written >= 1000 * TICK_S or (not life.wall.is_running and self._is_behind()):
            self._wall_written = life.wall.ms
            await life.write(partial(tasks.change, task_id=life.id, wall_ms=life.wall.ms), durable=False)

    def _is_behind(self) -> bool:
        return self._wall_written != self.life.wall.ms

    async def _do(self, act: Act, row: Row) -> None:
        life, sandbox_id = self.life, row.task.sandbox or ""
        match act:
            case Act.PAUSE:
                why = "a caller paused it" if row.is_held else "it waits for an answer"
                await self._move(TaskEvent.PAUSE, why)
            case Act.SLEEP:
                life.awake.clear()
                await self._sleep(sandbox_id, row)
            case Act.WAKE:
                sandbox = await life.tools.sandboxes.resume(sandbox_id, life.caller)
                self._seen = State.RUNNING
                await self._tell("sandbox.resumed", sandbox)
                life.awake.set()
            case Act.RESUME:
                await self._move(TaskEvent.RESUME, None)
            case Act.DELIVER:
                life.to_deliver.set()

    async def _sleep(self, sandbox_id: str, row: Row) -> None:
        try:
            why = "its task was paused" if row.is_held else "its task waits for an answer"
            sandbox = await self.life.tools.sandboxes.pause(sandbox_id, self.life.caller, why)
        except WrongState:
            self.life.wake()  # it has just ended, or somebody else does something with it
            raise
        self._seen = State.PAUSED
        await self._tell("sandbox.paused", sandbox)

    async def _move(self, event: TaskEvent, why: str | None) -> None:
        self.life.wall.run(event is TaskEvent.RESUME)
        with contextlib.suppress(WrongState):  # a caller did the same at this moment
            await self.life.move(event, {} if why is None else {"why": why})

    async def _tell(self, kind: str, sandbox: Sandbox) -> None:
        await self.life.tell(kind, {"sandbox": sandbox.id, "reason": sandbox.reason})

    def _wait_s(self, row: Row, facts: Facts) -> float:
        waits = [TICK_S if row.task.state in WORKING else IDLE_S]
        if (at_ms := next_ms(facts)) is not None:
            waits.append((at_ms - facts.now_ms) / 1000)
        if row.task.state in WORKING and row.ending is None:
            waits.append(row.task.caps.wall_sec - self.life.wall.ms / 1000)
        return max(LEAST_S, min(waits))


def seen_as(state: State) -> State:
    """To a task it is the same wherever its machine sleeps."""
    return State.PAUSED if state in ASLEEP else state


def is_working(state: TaskState, sandbox: State | None) -> bool:
    """Whether a task's time passes. One that is held before its agent has begun is on disk, and no further."""
    return state in WORKING and sandbox is not State.PAUSED


async def watch(life: Life, sandbox_id: str) -> None:
    """Have the task looked at whenever its sandbox is in another state. What its guest makes noise about is no news."""
    last = await life.tools.read(partial(events.last_seq, stream=sandbox_id))
    life.wake()  # for what happened until now
    async with contextlib.aclosing(life.tools.ledger.follow(sandbox_id, last)) as batches:
        async for batch in batches:
            if any(event.by == "host" and event.kind in STATES for event in batch):
                life.wake()
