"""Questions and changes about tasks. A change of state writes the state, its event and its audit row together.

What a task's host decided but has not done yet is in the row, too (`phase`, `ending`, `is_held`): who starts anew goes
on from there.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from contract.errors import NotFound
from contract.network import Network
from contract.task_states import FINAL, TaskEvent, TaskState, step
from contract.tasks import SHOWN_PROMPT_CHARS, Approvals, Caps, Checkpointing, Loop, Task, Usage
from poold.errors import NoRoomToQueue
from poold.ledger import audit, events, questions
from poold.ledger.connect import Connection
from poold.ledger.driver import sqlite3

KINDS = {
    TaskEvent.PLAN: "task.planning",
    TaskEvent.REQUEUE: "task.queued",
    TaskEvent.RUN: "task.running",
    TaskEvent.PAUSE: "task.paused",
    TaskEvent.RESUME: "task.resumed",
    TaskEvent.COMPLETE: "task.completed",
    TaskEvent.FAIL: "task.failed",
    TaskEvent.STOP: "task.stopped",
}
LAST = frozenset({"task.completed", "task.failed", "task.stopped"})  # kinds after which nothing is told of a task
DONE = "done"
# What was asked for and never changes.
ASKED = (
    *("model", "repo", "ref", "depth", "branch", "push", "image", "vcpus", "memory_mb", "disk_mb", "secrets"),
    *("keep_minutes", "webhook", "metadata", "retry_of", "retries", "workspace"),
)


@dataclass(frozen=True)
class Row:
    """A task, and what its host has to know of it beside that."""

    task: Task
    attempts: int = 0
    key_network: Network | None = None
    is_held: bool = False
    ending: dict[str, Any] | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.task.id


def add(db: sqlite3.Connection, row: Row, *, queue: int, request: str | None = None) -> None:
    """Write a new task down, before anything is done for it. If `queue` tasks wait already, it is refused."""
    task = row.task
    if waiting(db) >= queue:
        raise NoRoomToQueue(f"{queue} tasks wait for room on this host already", queued=queue)
    db.execute(
        "INSERT INTO tasks (id, owner, state, phase, agent, asked, prompt, prompt_chars, key_network, created_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            task.id,
            task.owner,
            task.state,
            task.phase,
            task.agent,
            _text(_asked(task)),
            task.prompt[:SHOWN_PROMPT_CHARS],
            len(task.prompt),
            None if row.key_network is None else _text(row.key_network.view()),
            task.created_ms,
        ),
    )
    db.execute("INSERT INTO prompts (task, text) VALUES (?, ?)", (task.id, task.prompt))
    told = {"state": task.state, "agent": task.agent, "model": task.model, "repo": task.repo, "image": task.image}
    events.append(db, task.id, "task.queued", told, at_ms=task.created_ms)
    _note(db, task, "create", told, now_ms=task.created_ms, request=request)


def move(
    db: sqlite3.Connection,
    task_id: str,
    event: TaskEvent,
    *,
    now_ms: int,
    told: Mapping[str, Any] | None = None,
    request: str | None = None,
    **changes: Any,
) -> Row:
    """Apply `event`, or raise `WrongState` and change nothing. Returns the task as it is then.

    `changes`: columns that change with it. `told` is in the event and in the audit row.
    """
    before = get(db, task_id)
    state = step(before.task.state, event)
    times = {} if before.task.started_ms or state is not TaskState.PLANNING else {"started_ms": now_ms}
    times |= {"ended_ms": now_ms} if state in FINAL else {}
    after = change(db, task_id, state=state, **times, **changes)
    said = {"state": state, **(told or {})}
    events.append(db, task_id, KINDS[event], said, at_ms=now_ms)
    _note(db, after.task, event, {"from": before.task.state, **said}, now_ms=now_ms, request=request)
    return after


def change(db: sqlite3.Connection, task_id: str, **columns: Any) -> Row:
    """Give the task's row other values in these columns, and return it. What is a dict is JSON there.

    One that is to end does so, whatever phase comes to its end at that moment: it has no next one.
    """
    if columns.get("phase", DONE) != DONE and "ending" not in columns and get(db, task_id).ending is not None:
        del columns["phase"]
    if columns:
        values = {name: _text(value) if isinstance(value, dict) else value for name, value in columns.items()}
        places = ", ".join(f"{name} = :{name}" for name in values)
        db.execute(f"UPDATE tasks SET {places} WHERE id = :id", {**values, "id": task_id})  # noqa: S608 — our own names
    return get(db, task_id)


def end(db: sqlite3.Connection, task_id: str, ending: Mapping[str, Any]) -> bool:
    """Write down how the task is to end; whether it will end so. The first word counts, and a stop always does."""
    row = get(db, task_id)
    is_stop = ending["event"] == TaskEvent.STOP
    if row.task.state in FINAL or (row.ending is not None and not (is_stop and row.ending["event"] != TaskEvent.STOP)):
        return False
    change(db, task_id, ending=dict(ending), phase="finish")
    if isinstance(db, Connection):
        db.touched.add(task_id)  # who waits for the task to change wants to know
    return True


def tell(
    db: sqlite3.Connection,
    task_id: str,
    kind: str,
    data: Mapping[str, Any],
    *,
    at_ms: int,
    guest_seq: int | None = None,
) -> None:
    """Put something at the end of the task's stream. Of one that has ended nothing is told any more."""
    state = states(db, [task_id])[task_id]
    if state is not None and state not in FINAL:
        events.append(db, task_id, kind, data, at_ms=at_ms, guest_seq=guest_seq)


def has_told(db: sqlite3.Connection, task_id: str, kind: str) -> bool:
    """Whether there is an event of this kind in the task's stream."""
    asked = "SELECT 1 FROM events WHERE stream = ? AND kind = ? LIMIT 1"
    return db.execute(asked, (task_id, kind)).fetchone() is not None


def note(
    db: sqlite3.Connection, task_id: str, action: str, detail: Mapping[str, Any], *, now_ms: int, request: str | None
) -> None:
    """A row of the audit, for what somebody did to the task that changes no state."""
    _note(db, get(db, task_id).task, action, detail, now_ms=now_ms, request=request)


def get(db: sqlite3.Connection, task_id: str) -> Row:
    row = db.execute("SELECT * FROM tasks WHERE id = ?", (task_id,)).fetchone()
    if row is None:
        raise NotFound(f"no task {task_id!r} on this host", task=task_id)
    return _row(db, row)


def prompt(db: sqlite3.Connection, task_id: str) -> str:
    """The whole prompt."""
    row = db.execute("SELECT text FROM prompts WHERE task = ?", (task_id,)).fetchone()
    if row is None:
        raise NotFound(f"no task {task_id!r} on this host", task=task_id)
    return str(row[0])


def listed(
    db: sqlite3.Connection,
    *,
    states: Collection[TaskState] = (),
    agent: str | None = None,
    owner: str | None = None,
    before: tuple[int, str] | None = None,
    limit: int,
) -> list[Task]:
    """Tasks that have all that is asked for, newest first, of those older than `before` (when created, and its id)."""
    clauses: list[tuple[str, Collection[Any]]] = [("1", ())]
    if states:
        # The plus keeps SQLite from the index by state: it would have to sort all that it finds there.
        clauses.append((f"+state IN ({', '.join('?' * len(states))})", sorted(states)))
    if agent is not None:
        clauses.append(("agent = ?", (agent,)))
    if owner is not None:
        clauses.append(("owner = ?", (owner,)))
    if before is not None:
        clauses.append(("(created_ms, id) < (?, ?)", before))
    rows = db.execute(
        f"SELECT * FROM tasks WHERE {' AND '.join(text for text, _ in clauses)}"  # noqa: S608 — marks, constants
        " ORDER BY created_ms DESC, id DESC LIMIT ?",
        [*(value for _, values in clauses for value in values), limit],
    )
    return [_row(db, row).task for row in rows]


def under_way(db: sqlite3.Connection) -> list[Row]:
    """All of which something is still to be done, oldest first: what a start of the daemon takes up."""
    rows = db.execute("SELECT * FROM tasks WHERE phase <> 'done' ORDER BY created_ms, id")
    return [_row(db, row) for row in rows.fetchall()]


def ids(db: sqlite3.Connection) -> set[str]:
    """All that this host has, and those that it has forgotten while their files were still there."""
    rows = db.execute("SELECT id FROM tasks UNION ALL SELECT task FROM forgotten_files")
    return {row[0] for row in rows}


def living(db: sqlite3.Connection, owner: str) -> list[Task]:
    """All of the owner's that have not ended: each has a reservation in its owner's book."""
    rows = db.execute("SELECT * FROM tasks WHERE phase <> 'done' AND owner = ? ORDER BY created_ms, id", (owner,))
    return [task for task in (_row(db, row).task for row in rows.fetchall()) if task.state not in FINAL]


def of_sandbox(db: sqlite3.Connection, sandbox_id: str) -> Task | None:
    """The task that works in this sandbox, or did."""
    row = db.execute("SELECT * FROM tasks WHERE sandbox = ? LIMIT 1", (sandbox_id,)).fetchone()
    return None if row is None else _row(db, row).task


def states(db: sqlite3.Connection, ids: Iterable[str]) -> dict[str, TaskState | None]:
    """The state of each; None for one that this host has never had, or has forgotten."""
    found: dict[str, TaskState | None] = {}
    for one in ids:
        row = db.execute("SELECT state FROM tasks WHERE id = ?", (one,)).fetchone()
        found[one] = None if row is None else TaskState(row[0])
    return found


def waiting(db: sqlite3.Connection) -> int:
    """How many wait for room."""
    return int(db.execute("SELECT count(*) FROM tasks WHERE state = 'queued'").fetchone()[0])


def count_by_state(db: sqlite3.Connection) -> dict[TaskState, int]:
    """How many tasks are in each state; 0 where there is none."""
    counted = {TaskState(row[0]): int(row[1]) for row in db.execute("SELECT state, count(*) FROM tasks GROUP BY state")}
    return {state: counted.get(state, 0) for state in TaskState}


def _note(
    db: sqlite3.Connection, task: Task, action: str, detail: Mapping[str, Any], *, now_ms: int, request: str | None
) -> None:
    entry = audit.Entry(
        at_ms=now_ms, action=f"task.{action}", owner=task.owner, sandbox=task.id, request=request, detail=detail
    )
    audit.add(db, entry)


def _asked(task: Task) -> dict[str, Any]:
    nested = {name: asdict(getattr(task, name)) for name in ("caps", "loop", "approvals", "checkpoint")}
    network = None if task.network is None else task.network.view()
    return {**{name: getattr(task, name) for name in ASKED}, **nested, "network": network}


def _text(value: object) -> str:
    return orjson.dumps(value).decode()


def _json(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def _row(db: sqlite3.Connection, row: sqlite3.Row) -> Row:
    task = _task(row)
    if task.state not in FINAL:
        task = replace(task, waiting=tuple(questions.open_ones(db, task.id)))
    return Row(
        task=task,
        attempts=row["attempts"],
        key_network=None if row["key_network"] is None else Network.decode(_json(row["key_network"])),
        is_held=bool(row["is_held"]),
        ending=_json(row["ending"]),
        kept=_json(row["kept"]),
        progress=_json(row["progress"]),
    )


def _task(row: sqlite3.Row) -> Task:
    asked = {"retries": 0, "workspace": None, **_json(row["asked"])}  # an older host has written none
    approvals = asked["approvals"]
    return Task(
        id=row["id"],
        state=TaskState(row["state"]),
        owner=row["owner"],
        agent=row["agent"],
        prompt=row["prompt"],
        prompt_chars=row["prompt_chars"],
        **{name: asked[name] for name in ASKED if name != "secrets"},
        secrets=tuple(asked["secrets"]),
        caps=Caps(**asked["caps"]),
        loop=Loop(**asked["loop"]),
        checkpoint=Checkpointing(**asked.get("checkpoint", {})),
        continued=row["continued"],
        approvals=Approvals(
            **{**approvals, "tools": tuple(approvals["tools"]), "commands": tuple(approvals["commands"])}
        ),
        network=None if asked["network"] is None else Network.decode(asked["network"]),
        created_ms=row["created_ms"],
        phase=row["phase"],
        sandbox=row["sandbox"],
        session=row["session"],
        usage=Usage(**{**_json(row["usage"]), "wall_ms": row["wall_ms"]}),
        started_ms=row["started_ms"],
        ended_ms=row["ended_ms"],
        reason=_json(row["reason"]),
        result=_json(row["result"]),
    )
