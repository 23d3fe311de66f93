"""What callers wish of a task, as it is written down: nothing is done here. No I/O but the ledger's."""

from contract.errors import WrongState
from contract.task_states import FINAL, TaskEvent, TaskState, step
from poold.ledger import tasks
from poold.ledger.driver import Connection
from poold.ledger.tasks import Row


def stop(db: Connection, task_id: str, now_ms: int, request: str | None) -> None:
    """The intent. One that only waits is over at once."""
    row = tasks.get(db, task_id)
    reason = {"code": "stopped", "message": "a caller stopped it"}
    if tasks.end(db, task_id, {"event": TaskEvent.STOP.value, "reason": reason}):
        tasks.note(db, task_id, "stop_asked", {"state": row.task.state}, now_ms=now_ms, request=request)


def pause(db: Connection, task_id: str, now_ms: int, request: str | None) -> None:
    row = tasks.get(db, task_id)
    if row.ending is not None and row.task.state not in FINAL:
        raise WrongState("cannot pause a task that is about to end", state=row.task.state)
    if row.task.state is not TaskState.PAUSED:
        step(row.task.state, TaskEvent.PAUSE)
    if not row.is_held:
        tasks.change(db, task_id, is_held=1)
        tasks.note(db, task_id, "pause_asked", {"state": row.task.state}, now_ms=now_ms, request=request)


def resume(db: Connection, task_id: str, now_ms: int, request: str | None) -> None:
    row = tasks.get(db, task_id)
    if row.is_held:
        tasks.change(db, task_id, is_held=0)
        tasks.note(db, task_id, "resume_asked", {"state": row.task.state}, now_ms=now_ms, request=request)
    elif row.task.waiting:
        names = ", ".join(each.id for each in row.task.waiting)
        raise WrongState(f"the task waits for an answer to {names}", state=row.task.state)
    elif row.task.state not in (TaskState.RUNNING, TaskState.PAUSED):
        step(row.task.state, TaskEvent.RESUME)


def goes_on(row: Row) -> bool:
    return row.task.state is not TaskState.PAUSED or bool(row.task.waiting) or row.is_held
