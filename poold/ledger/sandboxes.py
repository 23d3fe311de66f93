"""Questions and changes about sandboxes. A change writes the state, its event and its audit row together."""

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from contract.errors import NotFound, WrongState
from contract.models import Rules, Sandbox, Shape
from contract.states import LIVE, Event, State, step
from poold.ledger import audit, events, usage

ENDED = (State.STOPPED, State.ERROR)


def add(db: sqlite3.Connection, sandbox: Sandbox, *, request: str | None = None) -> None:
    """Write a new sandbox down, before anything is done for it."""
    shape, rules = sandbox.shape, sandbox.rules
    db.execute(
        "INSERT INTO sandboxes (id, state, owner, image, vcpus, memory_mb, disk_mb, metadata, created_ms, expires_ms,"
        " generation, timeout_sec, on_timeout, idle_sec, paused_sec, auto_resume)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            sandbox.id,
            sandbox.state,
            sandbox.owner,
            shape.image,
            shape.vcpus,
            shape.memory_mb,
            shape.disk_mb,
            orjson.dumps(sandbox.metadata).decode(),
            sandbox.created_ms,
            sandbox.expires_ms,
            sandbox.generation,
            rules.timeout_sec,
            rules.on_timeout,
            rules.idle_sec,
            rules.paused_sec,
            rules.auto_resume,
        ),
    )
    told = {"state": sandbox.state, **vars(shape), "rules": vars(rules), "expires_ms": sandbox.expires_ms}
    _record(db, sandbox, "created", told, action="create", noted=told, now_ms=sandbox.created_ms, request=request)


def move(
    db: sqlite3.Connection,
    sandbox_id: str,
    event: Event,
    *,
    now_ms: int,
    machine: str | None = None,
    generation: int | None = None,
    reason: str | None = None,
    expires_ms: int | None = None,
    request: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> Sandbox:
    """Apply `event`, or raise `WrongState` and change nothing. Returns the sandbox as it is then.

    What is None stays as it is; only a reason does not outlive the next time that the sandbox runs. `detail` is told in
    the event and in the audit row.
    """
    before = get(db, sandbox_id)
    state = step(before.state, event)
    asked = {"machine": machine, "generation": generation, "expires_ms": expires_ms}
    row = db.execute(MOVE, {**asked, "id": sandbox_id, "state": state, "reason": reason, "now": now_ms}).fetchone()
    after = _sandbox(row)
    if state is State.RUNNING:
        usage.begin(db, after, now_ms=now_ms)
    elif before.state is State.RUNNING:
        usage.end(db, sandbox_id, now_ms=now_ms)
    told = {"state": state, "reason": reason, **(detail or {})}
    noted = {"from": before.state, **told, **{name: value for name, value in asked.items() if value is not None}}
    _record(db, after, _kind(before, state), told, action=event, noted=noted, now_ms=now_ms, request=request)
    return after


# The first start and the first end are kept. While a paused sandbox is being resumed, `paused_ms` is kept, too:
# a resume that comes to nothing leaves it paused since then, and a start of the daemon can tell that its memory is on
# disk.
MOVE = (
    "UPDATE sandboxes SET state = :state,"
    " machine = coalesce(:machine, machine), generation = coalesce(:generation, generation),"
    " expires_ms = coalesce(:expires_ms, expires_ms),"
    " reason = CASE WHEN :state = 'running' THEN :reason ELSE coalesce(:reason, reason) END,"
    " started_ms = CASE WHEN :state = 'running' THEN coalesce(started_ms, :now) ELSE started_ms END,"
    " paused_ms = CASE WHEN :state = 'paused' THEN coalesce(paused_ms, :now)"
    "   WHEN :state IN ('running', 'stopped', 'error') THEN NULL ELSE paused_ms END,"
    " ended_ms = CASE WHEN :state IN ('stopped', 'error') THEN coalesce(ended_ms, :now) ELSE ended_ms END"
    " WHERE id = :id RETURNING *"
)


def set_expiry(
    db: sqlite3.Connection,
    sandbox_id: str,
    expires_ms: int | None,
    timeout_sec: int,
    now_ms: int,
    *,
    request: str | None = None,
) -> Sandbox:
    """Give the sandbox another end of its time, or raise `WrongState` if it has ended."""
    state = get(db, sandbox_id).state
    if state in ENDED:
        raise WrongState(f"sandbox {sandbox_id} is {state}: it has no time left to change", state=state)
    row = db.execute(
        "UPDATE sandboxes SET expires_ms = ?, timeout_sec = ? WHERE id = ? RETURNING *",
        (expires_ms, timeout_sec, sandbox_id),
    ).fetchone()
    after = _sandbox(row)
    told = {"expires_ms": expires_ms, "timeout_sec": timeout_sec}
    _record(db, after, "timeout", told, action="timeout", noted=told, now_ms=now_ms, request=request)
    return after


def get(db: sqlite3.Connection, sandbox_id: str) -> Sandbox:
    row = db.execute("SELECT * FROM sandboxes WHERE id = ?", (sandbox_id,)).fetchone()
    if row is None:
        raise NotFound(f"no sandbox {sandbox_id!r} on this host", sandbox=sandbox_id)
    return _sandbox(row)


def listed(
    db: sqlite3.Connection, *, owner: str | None = None, states: Iterable[State], after: str | None, limit: int
) -> list[Sandbox]:
    """Sandboxes in `states`, of `owner` or of all, newest first, starting behind the sandbox `after`."""
    wanted = list(states)
    marks = ", ".join("?" * len(wanted))
    behind = "AND (created_ms, id) < (SELECT created_ms, id FROM sandboxes WHERE id = ?)" if after else ""
    rows = db.execute(
        f"SELECT * FROM sandboxes WHERE (? IS NULL OR owner = ?) AND state IN ({marks}) {behind}"  # noqa: S608 — marks
        " ORDER BY created_ms DESC, id DESC LIMIT ?",
        [owner, owner, *wanted, *([after] if after else []), limit],
    )
    return [_sandbox(row) for row in rows]


def alive(db: sqlite3.Connection) -> list[Sandbox]:
    """All that may have a machine or memory on this host, oldest first: what a start of the daemon looks after."""
    wanted = sorted({*LIVE, State.PAUSED})
    marks = ", ".join("?" * len(wanted))
    rows = db.execute(
        f"SELECT * FROM sandboxes WHERE state IN ({marks}) ORDER BY created_ms, id",  # noqa: S608 — only marks
        wanted,
    )
    return [_sandbox(row) for row in rows]


def count_by_state(db: sqlite3.Connection) -> dict[State, int]:
    """How many sandboxes are in each state; 0 where there is none."""
    counted = {State(row[0]): int(row[1]) for row in db.execute("SELECT state, count(*) FROM sandboxes GROUP BY state")}
    return {state: counted.get(state, 0) for state in State}


def _kind(before: Sandbox, state: State) -> str:
    """What a client reads in the stream: the new state, or that it is running again."""
    return "resumed" if state is State.RUNNING and before.started_ms is not None else str(state)


def _record(
    db: sqlite3.Connection,
    sandbox: Sandbox,
    kind: str,
    told: Mapping[str, Any],
    *,
    action: str,
    noted: Mapping[str, Any],
    now_ms: int,
    request: str | None,
) -> None:
    """History: what the sandbox's stream tells, and what the audit log notes."""
    events.append(db, sandbox.id, kind, told, at_ms=now_ms)
    entry = audit.Entry(
        at_ms=now_ms,
        action=f"sandbox.{action}",
        owner=sandbox.owner,
        sandbox=sandbox.id,
        request=request,
        detail=noted,
    )
    audit.add(db, entry)


def _sandbox(row: sqlite3.Row) -> Sandbox:
    return Sandbox(
        id=row["id"],
        state=State(row["state"]),
        shape=Shape(row["image"], row["vcpus"], row["memory_mb"], row["disk_mb"]),
        metadata=orjson.loads(row["metadata"]),
        created_ms=row["created_ms"],
        expires_ms=row["expires_ms"],
        rules=Rules(
            timeout_sec=row["timeout_sec"],
            on_timeout=row["on_timeout"],
            idle_sec=row["idle_sec"],
            paused_sec=row["paused_sec"],
            auto_resume=bool(row["auto_resume"]),
        ),
        owner=row["owner"],
        started_ms=row["started_ms"],
        paused_ms=row["paused_ms"],
        ended_ms=row["ended_ms"],
        machine=row["machine"],
        generation=row["generation"],
        reason=row["reason"],
    )
