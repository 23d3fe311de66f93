"""An agent's events, written down as they come: what was told, its steps, its questions and what it used, together.

Each batch is one transaction with how far it was read, so that whoever starts anew goes on behind it. What ends the
task is decided after every event and written down with the batch that shows it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import orjson

from contract.task_states import TaskEvent
from contract.tasks import Waiting
from poold.ledger import questions, steps, tasks
from poold.ledger.driver import Connection
from poold.ledger.tasks import Row
from poold.link import DOTTED_KIND, Guest, GuestEvent, read_events
from poold.tasks.judge import Capped, Spending, Verdict, judge, spending
from poold.tasks.life import Gone, Life
from poold.tasks.progress import Changes, Progress, Reader

log = logging.getLogger("poold.tasks")

AGAIN_S = 1.0
# A guest may not fill the host's ledger: so many events at once, and so many a second after that; a long one counts
# as several.
BURST = 4000
PER_SECOND = 200.0
BYTES_OF_ONE = 2048


class Allowance:
    """How much a guest may still tell."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._at = clock()

    def wait_s(self, batch: Sequence[GuestEvent]) -> float:
        """Take a batch from the allowance, and return how long to wait before asking for more."""
        now = self._clock()
        cost = sum(1 + len(orjson.dumps(event.data)) // BYTES_OF_ONE for event in batch)
        self._left = min(BURST, self._left + (now - self._at) * PER_SECOND) - cost
        self._at = now
        return max(0.0, -self._left / PER_SECOND)


async def follow(life: Life, sandbox_id: str) -> Progress:
    """Write the agent's events down until it has ended. Goes on where it was; waits while the machine is on disk."""
    allowance = Allowance(asyncio.get_running_loop().time)
    while True:
        progress = Progress.decode((await life.row()).progress)
        if progress.ended is not None:
            return progress
        async with life.inside(sandbox_id) as guest:
            progress = await _listen(life, guest, progress, allowance)
        if progress.ended is None:
            await asyncio.sleep(AGAIN_S)


async def _listen(life: Life, guest: Guest, progress: Progress, allowance: Allowance) -> Progress:
    """Until the agent has ended or the stream has."""
    async with (
        guest.exchange("GET", f"/run/events?after={progress.seq}") as answer,
        contextlib.aclosing(read_events(answer.chunks(), DOTTED_KIND)) as batches,
    ):
        async for batch in batches:
            progress = await take(life, progress, batch)
            if progress.ended is not None:
                break
            await asyncio.sleep(allowance.wait_s(batch))
    return progress


async def take(life: Life, before: Progress, batch: Sequence[GuestEvent]) -> Progress:
    """Write a batch down, and what follows from it. Returns how far it is read then."""
    row = await life.row()
    after, changes, verdict = _read(life, row, before, batch)
    asked = spending(after, row.task.approvals)
    if after.ended is not None:
        asked = None  # it spends no more
    if asked is not None:
        after = replace(after, approved_spends=asked.number)
    write = partial(
        _write, life=life, run=row.task.continued, after=after, changes=changes, verdict=verdict, asked=asked
    )
    is_news = await life.write(write, durable=verdict is not None or after.ended is not None)
    _measure(life, row, before, len(changes.told))
    if any(ended.file for ended in changes.ended):
        life.to_fetch.set()
    if verdict is not None or after.ended is not None:
        life.ended()
    elif is_news:
        life.wake()
    return after


def _read(
    life: Life, row: Row, before: Progress, batch: Sequence[GuestEvent]
) -> tuple[Progress, Changes, Verdict | None]:
    reader = Reader(before, life.tools.now_ms(), life.tools.price)
    verdict: Verdict | None = None
    for event in batch:
        reader.take(event)
        verdict = verdict or judge(reader.now, row.task.caps, row.task.loop, wall_ms=life.wall.ms)
    return reader.now, reader.changes, verdict


def _write(
    db: Connection,
    *,
    life: Life,
    run: int,
    after: Progress,
    changes: Changes,
    verdict: Verdict | None,
    asked: Spending | None,
) -> bool:
    """Whether there is something to decide."""
    row = tasks.get(db, life.id)
    if row.task.continued != run:
        raise Gone("the task goes on in another machine")
    at_ms = life.tools.now_ms()
    for told in changes.told:
        tasks.tell(db, life.id, told.kind, told.data, at_ms=at_ms, guest_seq=told.guest_seq)
    _write_steps(db, life.id, changes)
    is_news = _write_questions(db, row, changes, asked, at_ms)
    used = {name: value for name, value in asdict(after.usage).items() if name != "wall_ms"}
    tasks.change(db, life.id, progress=after.encode(), usage=used, session=after.session)
    verdict = verdict or _over_output(after, row)
    if verdict is not None:
        _end(db, life.id, verdict, at_ms)
    elif after.ended is not None:
        tasks.end(db, life.id, ending_of(after.ended))
    return is_news


def _over_output(after: Progress, row: Row) -> Verdict | None:
    """A guest stops an agent by itself that prints too much."""
    if after.ended is None or after.ended["error"] != "output_bytes":
        return None
    limit = row.task.caps.output_bytes
    return Capped("output_bytes", limit, max(limit, after.output_bytes))


def _write_steps(db: Connection, task_id: str, changes: Changes) -> None:
    for begun in changes.begun:
        steps.begin(db, task_id, begun)
    for ended in changes.ended:
        steps.end(db, task_id, ended)
    for spent in changes.spent:
        steps.spend(db, task_id, spent)


def _write_questions(db: Connection, row: Row, changes: Changes, asked: Spending | None, at_ms: int) -> bool:
    """What is asked is asked of a person, but for a push that needs nobody's word."""
    wanted = [*changes.asked, *([] if asked is None else [_about_spending(asked, at_ms)])]
    for waiting in wanted:
        if not questions.ask(db, row.id, waiting):
            continue
        tasks.tell(db, row.id, "approval.requested", asdict(waiting), at_ms=at_ms)
        if waiting.kind == "push" and not row.task.approvals.push:
            questions.answer(db, row.id, waiting.id, "approve", "", now_ms=at_ms)
            tasks.tell(db, row.id, "approval.answered", answered(waiting.id, "approve", "host"), at_ms=at_ms)
    for name in changes.withdrawn:
        if questions.withdraw(db, row.id, name, now_ms=at_ms):
            tasks.tell(db, row.id, "approval.answered", answered(name, "withdrawn", "guest"), at_ms=at_ms)
    return bool(wanted or changes.withdrawn)


def answered(question_id: str, kind: str, by: str) -> dict[str, Any]:
    return {"id": question_id, "kind": kind, "by": by}


def _about_spending(asked: Spending, at_ms: int) -> Waiting:
    text = f"it has spent {asked.usd:g} dollars: may it go on?"
    arguments = {"usd": asked.usd, "at_usd": asked.at_usd}
    return Waiting(f"sp-{asked.number}", "spend", text, None, arguments, at_ms)


def _end(db: Connection, task_id: str, verdict: Verdict, at_ms: int) -> None:
    kind = "cap.reached" if isinstance(verdict, Capped) else "loop.found"
    if tasks.end(db, task_id, {"event": TaskEvent.FAIL.value, "reason": verdict.reason}):
        tasks.tell(db, task_id, kind, verdict.data, at_ms=at_ms)


def ending_of(ended: dict[str, Any]) -> dict[str, Any]:
    """How a task ends whose agent ended so."""
    if ended["outcome"] == "success":
        return {"event": TaskEvent.COMPLETE.value, "reason": None}
    figures = {name: ended[name] for name in ("exit_code", "signal", "output_tail") if ended[name] is not None}
    message = ended["error"] or "the agent was stopped in its machine"
    return {"event": TaskEvent.FAIL.value, "reason": {"code": "agent", "message": message, **figures}}


def _measure(life: Life, row: Row, before: Progress, told: int) -> None:
    metrics = life.tools.metrics
    metrics.task_events_total.add(told)
    if before.seq == 0 and told:
        metrics.task_first_event_seconds.observe((life.tools.now_ms() - row.task.created_ms) / 1000)
