"""Questions and changes about sandboxes."""

import sqlite3
from collections.abc import Iterable

import orjson

from contract.errors import NotFound
from contract.models import Sandbox, Shape
from contract.states import Event, State, step


def add(db: sqlite3.Connection, sandbox: Sandbox) -> None:
    """Write a new sandbox down, before anything is done for it."""
    db.execute(
        "INSERT INTO sandboxes (id, state, image, vcpus, memory_mb, disk_mb, metadata, created_ms, expires_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            sandbox.id,
            sandbox.state,
            sandbox.shape.image,
            sandbox.shape.vcpus,
            sandbox.shape.memory_mb,
            sandbox.shape.disk_mb,
            orjson.dumps(sandbox.metadata).decode(),
            sandbox.created_ms,
            sandbox.expires_ms,
        ),
    )


def move(
    db: sqlite3.Connection,
    sandbox_id: str,
    event: Event,
    *,
    now_ms: int,
    machine: str | None = None,
    reason: str | None = None,
) -> Sandbox:
    """Apply `event`, or raise `WrongState` and change nothing. Returns the sandbox as it is then."""
    state = step(get(db, sandbox_id).state, event)
    db.execute(
        "UPDATE sandboxes SET state = :state,"
        " machine = coalesce(:machine, machine), reason = coalesce(:reason, reason),"
        " started_ms = CASE WHEN :state = 'running' THEN coalesce(started_ms, :now) ELSE started_ms END,"
        " ended_ms = CASE WHEN :state IN ('stopped', 'error') THEN coalesce(ended_ms, :now) ELSE ended_ms END"
        " WHERE id = :id",
        {"id": sandbox_id, "state": state, "machine": machine, "reason": reason, "now": now_ms},
    )
    return get(db, sandbox_id)


def get(db: sqlite3.Connection, sandbox_id: str) -> Sandbox:
    row = db.execute("SELECT * FROM sandboxes WHERE id = ?", (sandbox_id,)).fetchone()
    if row is None:
        raise NotFound(f"no sandbox {sandbox_id!r} on this host", sandbox=sandbox_id)
    return _sandbox(row)


def listed(db: sqlite3.Connection, *, states: Iterable[State], after: str | None, limit: int) -> list[Sandbox]:
    """Sandboxes in `states`, newest first, starting behind the sandbox `after`."""
    wanted = list(states)
    marks = ", ".join("?" * len(wanted))
    behind = "AND (created_ms, id) < (SELECT created_ms, id FROM sandboxes WHERE id = ?)" if after else ""
    rows = db.execute(
        f"SELECT * FROM sandboxes WHERE state IN ({marks}) {behind}"  # noqa: S608 — only marks and constants
        " ORDER BY created_ms DESC, id DESC LIMIT ?",
        [*wanted, *([after] if after else []), limit],
    )
    return [_sandbox(row) for row in rows]


def _sandbox(row: sqlite3.Row) -> Sandbox:
    return Sandbox(
        id=row["id"],
        state=State(row["state"]),
        shape=Shape(row["image"], row["vcpus"], row["memory_mb"], row["disk_mb"]),
        metadata=orjson.loads(row["metadata"]),
        created_ms=row["created_ms"],
        expires_ms=row["expires_ms"],
        started_ms=row["started_ms"],
        ended_ms=row["ended_ms"],
        machine=row["machine"],
        reason=row["reason"],
    )
