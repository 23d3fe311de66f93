"""The end of a task: its agent is stopped, its work is kept, and then it has ended.

What is kept is written down step by step (`kept` in the task's row), so that whoever starts anew goes on where it was.
A step that fails costs itself only: a task always ends. A machine that is gone takes with it what was not kept yet.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from contract.errors import WarrenError
from contract.task_states import FINAL, TaskEvent, TaskState
from contract.tasks import Task, Waiting
from poold import lifetimes
from poold.archives.errors import ArchiveTooLarge
from poold.errors import GuestRefused
from poold.ledger import questions, tasks, webhooks
from poold.ledger.driver import Connection
from poold.ledger.tasks import Row
from poold.tasks import keeping
from poold.tasks.checkpointing import forget_all
from poold.tasks.errors import ArtifactTooLarge
from poold.tasks.fetching import fetch_all
from poold.tasks.follow import answered, follow
from poold.tasks.life import Gone, Life, ask
from poold.tasks.progress import Progress
from poold.tasks.pushing import push

log = logging.getLogger("poold.tasks")

GRACE_MS = 5000  # for an agent to stop by itself
STOP_S = 60.0
LAST_WORDS_S = 30.0  # until an agent that was stopped has told its end
AGAIN_S = 1.0
TRIES = 3
LIMITS_S = {"archive": 3 * 3600.0, "pushed": None}  # a workspace may be large, and a person slow
LIMIT_S = 900.0
WAKE_S = 600.0  # for a machine that is on disk to find room
ASKS = "hp-1"
UNFORESEEN = "something went wrong in its host; the host's log has more"

Step = Callable[[Life, Row], Awaitable[Any]]


async def finish(life: Life) -> None:
    """Keep the work and write the end down. May be called again at any point."""
    row = await life.row()
    if row.task.state not in FINAL:
        if keeping.has_work(row):
            await _keep_all(life, row)
        await _conclude(life)
    await _clear(life)


async def _keep_all(life: Life, row: Row) -> None:
    steps: list[tuple[str, Step]] = [
        ("stopped", _stop_agent),
        ("outputs", _fetch),
        ("commit", keeping.commit),
        ("work", keeping.work),
        ("archive", keeping.archive),
        ("workspace", _save_workspace),
        ("pushed", _push),  # last: it may have to wait for a person
    ]
    try:
        await _awake(life)
        for name, step in steps:
            await _attempt(life, name, step)
    except Gone as error:
        log.warning("a task's machine was gone before its work was kept", extra={"task": life.id, "why": str(error)})


async def _awake(life: Life) -> None:
    try:
        async with asyncio.timeout(WAKE_S):
            await life.awake.wait()
    except TimeoutError:
        raise Gone(f"its machine is on disk, and found no room within {WAKE_S:g} s") from None
    if life.gone is not None:
        raise Gone(life.gone)


async def _attempt(life: Life, name: str, step: Step) -> None:
    """Do a step, if it was not done before. One that fails again and again is left out, and the result says so."""
    for tried in range(1, TRIES + 1):
        row = await life.row()
        if name in row.kept:
            return
        try:
            async with asyncio.timeout(LIMITS_S.get(name, LIMIT_S)):
                told = await step(life, row)
            break
        except Gone:
            raise
        except TimeoutError:
            told = {"problem": "it took too long"}
            break
        except WarrenError as error:
            if life.gone is not None:
                raise Gone(life.gone) from error
            log.warning("of a task's work: %s failed", name, extra={"task": life.id, "why": str(error)})
            told = {"problem": error.message}
            if isinstance(error, GuestRefused | ArchiveTooLarge | ArtifactTooLarge):  # it would be the same again
                break
            await asyncio.sleep(AGAIN_S * tried)
        except Exception:  # what nobody foresaw costs the step, and neither the others nor the end
            log.exception("of a task's work: %s failed", name, extra={"task": life.id})
            told = {"problem": UNFORESEEN}
            break
    if name == "archive" and "problem" in told:
        await life.tell("task.archived", told)
    await life.write(partial(_kept, task_id=life.id, name=name, told=told))


def _kept(db: Connection, task_id: str, name: str, told: Any) -> None:
    row = tasks.get(db, task_id)
    if row.ending is not None:  # else it goes on in another machine, and this is of the old one
        tasks.change(db, task_id, kept={**row.kept, name: told})


async def _stop_agent(life: Life, row: Row) -> dict[str, Any]:
    """Nothing of the agent runs any more, and all that it told is written down."""
    if Progress.decode(row.progress).ended is not None:
        return {}
    async with life.inside(row.task.sandbox or "") as guest:
        facts = await ask(guest, "GET", "/run")
        if facts.get("task") != life.id:
            return {}  # it was never begun
        await ask(guest, "POST", "/run/stop", {"grace_ms": GRACE_MS}, limit_s=STOP_S)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORDS_S):
            await follow(life, row.task.sandbox or "")
    return {}


async def _save_workspace(life: Life, row: Row) -> dict[str, Any]:
    """What fails here is tried again before its machine goes."""
    if row.task.workspace is None:
        return {}
    saved = await life.tools.sandboxes.save_workspace(row.task.sandbox or "", life.caller)
    told = {"name": row.task.workspace, "version": saved.version, "is_new": saved.is_new}
    await life.tell("task.saved", told)
    return told


async def _fetch(life: Life, row: Row) -> dict[str, Any]:
    await fetch_all(life, row.task.sandbox or "")
    return {}


async def _push(life: Life, row: Row) -> dict[str, Any] | None:
    """The branch is pushed if that was asked for and the work is done. What is refused costs nothing but the push."""
    task = row.task
    if not task.push or _event(row) is not TaskEvent.COMPLETE:
        return None
    try:
        is_allowed = not task.approvals.push or await _may_push(life)
    except Gone as error:
        why = f"its machine was gone before somebody had said that it may be pushed: {error.message}"
        return await _not_pushed(life, task, "machine_gone", why)
    if not is_allowed:
        return await _not_pushed(life, task, "rejected", "a person said that it may not be pushed")
    head = (row.kept.get("work") or {}).get("head")
    return await push(life, task, f"{life.id}:push:end", task.branch, head)


async def _not_pushed(life: Life, task: Task, refused: str, message: str) -> dict[str, Any]:
    told = {"branch": task.branch, "refused": refused, "message": message}
    await life.tell("git.refused", told)
    return told


async def _may_push(life: Life) -> bool:
    """Ask a person, and wait for the answer: for as long as it takes, with the machine on disk if it takes long.

    Raises `Gone` if there is nothing left to push from.
    """
    await life.write(partial(_ask, life=life))
    life.wake()
    answer, lost = asyncio.ensure_future(_answer(life)), asyncio.ensure_future(life.lost.wait())
    try:
        await asyncio.wait({answer, lost}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise Gone(str(life.gone))
    finally:
        for each in (answer, lost):
            each.cancel()
        await lifetimes.finish(asyncio.wait({answer, lost}))


async def _answer(life: Life) -> bool:
    async with contextlib.aclosing(life.tools.ledger.changes(life.id)) as changes:
        async for _ in changes:
            question = await life.tools.read(lambda db: questions.get(db, life.id, ASKS))
            row = await life.row()
            if _event(row) is not TaskEvent.COMPLETE:
                return False
            if question is not None and question.answered_ms is not None:
                await life.write(partial(_asked, life=life))
                life.wake()
                await _awake(life)
                return question.answer == "approve"
    return False


def _ask(db: Connection, life: Life) -> None:
    row, at_ms = tasks.get(db, life.id), life.tools.now_ms()
    text = f"may {row.task.branch} be pushed to {row.task.repo}?"
    arguments = {"branch": row.task.branch, "commit": (row.kept.get("work") or {}).get("head")}
    waiting = Waiting(ASKS, "push", text, "git push", arguments, at_ms)
    if questions.ask(db, life.id, waiting):
        tasks.tell(db, life.id, "approval.requested", vars(waiting), at_ms=at_ms)
    tasks.change(db, life.id, kept={**row.kept, "asks": True})


def _asked(db: Connection, life: Life) -> None:
    questions.done(db, life.id, ASKS)
    row = tasks.get(db, life.id)
    tasks.change(db, life.id, kept={name: value for name, value in row.kept.items() if name != "asks"})


async def _conclude(life: Life) -> None:
    life.wall.run(False)
    row = await life.write(partial(_write_end, life=life))
    life.tools.metrics.tasks_total.add(outcome=row.task.state)


def _write_end(db: Connection, life: Life) -> Row:
    """The last change of state: with it its reason, its result, and who is to be told."""
    row, now_ms = tasks.get(db, life.id), life.tools.now_ms()
    if row.ending is None:
        raise Gone("the task goes on in another machine")
    for waiting in row.task.waiting:
        questions.withdraw(db, life.id, waiting.id, now_ms=now_ms)
        tasks.tell(db, life.id, "approval.answered", answered(waiting.id, "withdrawn", "host"), at_ms=now_ms)
    event = _event(row)
    if event is TaskEvent.COMPLETE and row.task.state is TaskState.PAUSED:
        tasks.move(db, life.id, TaskEvent.RESUME, now_ms=now_ms)
    reason = (row.ending or {}).get("reason")
    result = keeping.result_of(row) if "cloned" in row.kept else None
    told = {"reason": reason, "result": result}
    changes = {"reason": reason, "result": result, "wall_ms": life.wall.ms, "phase": "finish", "is_held": 0}
    after = tasks.move(db, life.id, event, now_ms=now_ms, told=told, **_present(changes))
    if after.task.webhook is not None:
        webhooks.add(db, after.task, now_ms=now_ms)
    return after


def _present(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value is not None}


def _event(row: Row) -> TaskEvent:
    return TaskEvent((row.ending or {"event": TaskEvent.FAIL})["event"])


async def _clear(life: Life) -> None:
    """What the task no longer needs goes: its machine. What fails is tried again by whoever runs this."""
    row = await life.row()
    if "sha256" in (row.kept.get("archive") or {}):  # else the last checkpoint is all that there is of its work
        await forget_all(life)
    if row.task.sandbox is not None:
        await _release(life, row.task, row.task.sandbox)
    await life.write(partial(tasks.change, task_id=life.id, phase=tasks.DONE))


async def _release(life: Life, task: Task, sandbox_id: str) -> None:
    sandbox = await life.sandbox(await life.row())
    if sandbox is None:
        return
    if task.keep_minutes and life.gone is None:
        with contextlib.suppress(WarrenError):  # it has ended by itself
            await life.tools.sandboxes.set_timeout(sandbox_id, 60 * task.keep_minutes, life.caller, "destroy")
            return
    await life.tools.sandboxes.destroy(sandbox_id, life.caller, "its task has ended")
