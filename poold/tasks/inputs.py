"""What a person says to a task, written down. The effect comes later, and surely."""

from contract.errors import BadField, WrongState
from contract.models import Caller
from contract.task_states import FINAL, TaskState
from contract.tasks import ASKABLE, Input
from poold.errors import NotPossible, NotWaiting
from poold.ledger import questions, tasks
from poold.ledger.driver import Connection
from poold.ledger.questions import Question
from poold.ledger.tasks import Row

ALLOWED = {"question": ("answer", "reject")}
YES_OR_NO = ("approve", "reject")


def say(db: Connection, task_id: str, said: Input, *, now_ms: int, caller: Caller) -> Row:
    """Write it down. An answer that was given before, in the same words, changes nothing."""
    row = tasks.get(db, task_id)
    if row.task.state in FINAL:
        raise WrongState(f"cannot tell a task something that is {row.task.state}", state=row.task.state)
    if said.kind == "instruct":
        return _instruct(db, row, said, now_ms=now_ms, caller=caller)
    question = _meant(db, row, said)
    if question.answered_ms is None:
        _check_kind(question, said)
        questions.answer(db, task_id, question.id, said.kind, said.text, now_ms=now_ms)
        _record(db, row, question.id, said.kind, now_ms=now_ms, caller=caller)
    elif (question.answer, question.answer_text) != (said.kind, said.text):
        raise NotWaiting(f"{question.id} was answered before, with {question.answer}", task=task_id, id=question.id)
    return tasks.get(db, task_id)


def _meant(db: Connection, row: Row, said: Input) -> Question:
    """The question that an answer names, or the only one that is open."""
    waiting = row.task.waiting
    if said.id is None and len(waiting) != 1:
        problem = "is required: several questions are open" if waiting else "nothing waits for an answer"
        raise NotWaiting(f"id: {problem}", task=row.id, waiting=[each.id for each in waiting])
    name = waiting[0].id if said.id is None else said.id
    question = questions.get(db, row.id, name)
    if question is None or question.answer in ("withdrawn", "instruct"):
        raise NotWaiting(f"nothing waits for an answer to {name}", task=row.id, waiting=[each.id for each in waiting])
    return question


def _check_kind(question: Question, said: Input) -> None:
    allowed = ALLOWED.get(question.kind, YES_OR_NO)
    if said.kind not in allowed:
        raise BadField("kind", said.kind, f"{question.id} takes {' or '.join(allowed)}")


def _instruct(db: Connection, row: Row, said: Input, *, now_ms: int, caller: Caller) -> Row:
    if row.task.agent not in ASKABLE:
        raise NotPossible(f"the agent {row.task.agent} takes no instructions while it works", task=row.id)
    if row.task.state not in (TaskState.RUNNING, TaskState.PAUSED) or row.ending is not None:
        raise WrongState(f"cannot instruct a task that is {row.task.state}", state=row.task.state)
    name = questions.instruct(db, row.id, said.text, now_ms=now_ms)
    _record(db, row, name, "instruct", now_ms=now_ms, caller=caller)
    return tasks.get(db, row.id)


def _record(db: Connection, row: Row, name: str, kind: str, *, now_ms: int, caller: Caller) -> None:
    told = {"id": name, "kind": kind, "by": caller.owner}
    tasks.tell(db, row.id, "approval.answered", told, at_ms=now_ms)
    tasks.note(db, row.id, "input", told, now_ms=now_ms, request=caller.request)
