"""A task whose machine is lost: whether it goes on in another one, from what, and what is told of it."""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from contract.models import Sandbox
from contract.states import State
from contract.task_states import TaskEvent
from poold.ledger import checkpoints, questions, steps, tasks
from poold.ledger.checkpoints import Checkpoint
from poold.ledger.driver import Connection
from poold.ledger.tasks import Row
from poold.tasks.follow import answered
from poold.tasks.progress import Failure, Progress

LOST = "its machine was lost"


class Way(Enum):
    """How a task goes on."""

    NOT = auto()
    ANEW = auto()  # from the clone
    RESTORED = auto()  # from its last checkpoint


@dataclass(frozen=True)
class Facts:
    """What is known of a task whose machine is lost."""

    was_stopped: bool  # the sandbox, by somebody
    phase: str
    ending: TaskEvent | None
    is_kept: bool  # the work of an agent that has ended
    continued: int
    retries: int
    has_checkpoint: bool
    has_effects: bool  # that another try would have twice: something was pushed, or a person has answered


def decide(facts: Facts) -> Way:
    """An agent that has ended well and whose work is not kept yet does the last of it again."""
    is_ending = facts.ending not in (None, TaskEvent.COMPLETE) or (facts.ending is not None and facts.is_kept)
    if facts.was_stopped or is_ending or facts.continued >= facts.retries or facts.phase == "done":
        return Way.NOT
    if facts.has_checkpoint:
        return Way.RESTORED
    if facts.phase in ("claim", "clone", "restore"):
        return Way.ANEW
    return Way.NOT if facts.has_effects else Way.ANEW


def go_on(db: Connection, task_id: str, sandbox: Sandbox, *, now_ms: int) -> bool:
    """Write down that the task goes on, if it does, and from where: it is claimed another machine then."""
    row = tasks.get(db, task_id)
    links = checkpoints.chain(checkpoints.resumable(checkpoints.listed(db, task_id)))
    last = links[-1] if links else None
    way = decide(_facts(db, row, sandbox, last))
    if way is Way.NOT or row.task.sandbox != sandbox.id:
        return False
    for waiting in row.task.waiting:  # who asked is no more; who goes on asks again
        questions.withdraw(db, task_id, waiting.id, now_ms=now_ms)
        tasks.tell(db, task_id, "approval.answered", answered(waiting.id, "withdrawn", "host"), at_ms=now_ms)
    steps.lose(db, task_id, LOST, now_ms=now_ms)
    progress = Progress.decode(row.progress)
    tasks.tell(db, task_id, "sandbox.lost", {"sandbox": sandbox.id, "reason": sandbox.reason}, at_ms=now_ms)
    tasks.tell(db, task_id, "task.continued", _told(row, progress, last, sandbox), at_ms=now_ms)
    kept: dict[str, Any] = {}
    if last is not None:
        told = {"checkpoint": last.number, "session": last.session, "used": last.used}
        kept = {"cloned": row.kept.get("cloned", {}), "continued": told}
    tasks.change(
        db,
        task_id,
        phase="claim",
        ending=None,
        attempts=0,
        continued=row.task.continued + 1,
        kept=kept,
        progress=continued(progress).encode(),
    )
    return True


def _facts(db: Connection, row: Row, sandbox: Sandbox, last: Checkpoint | None) -> Facts:
    return Facts(
        was_stopped=sandbox.state is not State.ERROR,
        phase=row.task.phase,
        ending=None if row.ending is None else TaskEvent(row.ending["event"]),
        is_kept="work" in row.kept,
        continued=row.task.continued,
        retries=row.task.retries,
        has_checkpoint=last is not None,
        has_effects=tasks.has_told(db, row.id, "git.pushed") or questions.has_answers(db, row.id),
    )


def _told(row: Row, progress: Progress, last: Checkpoint | None, sandbox: Sandbox) -> dict[str, Any]:
    """From which checkpoint, and what is lost since."""
    covered, steps_then = (last.guest_seq, last.steps) if last is not None else (0, 0)
    return {
        "run": row.task.continued + 2,
        "checkpoint": None if last is None else last.number,
        "lost": {"events": max(0, progress.seq - covered), "steps": max(0, progress.steps - steps_then)},
        "why": sandbox.reason,
    }


def continued(progress: Progress) -> Progress:
    """What is known of an agent that begins once more: what is done again is no loop, and what was begun never ends."""
    said = replace(progress, calls={}, thought="", is_said=False, has_session=False, ended=None)
    return replace(said, diffs={}, last_diff="", failure=Failure())
