"""The drain of this host that is under way, and which sandboxes it put to sleep while they ran.

`sandboxes.wanted` names that drain, from before a sandbox is paused until it runs again or it is known that it does
not, here or at the host that has taken this ledger in. So whoever has the sandbox knows what it owes it.
"""

from dataclasses import dataclass
from typing import Any

from poold.ledger import audit, sandboxes
from poold.ledger.driver import sqlite3


@dataclass(frozen=True)
class Row:
    """What was asked for."""

    id: str
    begun_ms: int
    until_ms: int
    is_forced: bool
    why: str

    def view(self) -> dict[str, Any]:
        return vars(self)


def begin(db: sqlite3.Connection, row: Row, *, request: str | None = None) -> None:
    """The intent, with its audit row."""
    columns = (row.id, row.begun_ms, row.until_ms, int(row.is_forced), row.why)
    db.execute("INSERT INTO drains (id, begun_ms, until_ms, is_forced, why) VALUES (?, ?, ?, ?, ?)", columns)
    _note(db, "host.drain", row, {"mode": "move"}, now_ms=row.begun_ms, request=request)


def hasten(db: sqlite3.Connection, row: Row, *, now_ms: int) -> None:
    """The same drain, with less time or more force."""
    db.execute(
        "UPDATE drains SET until_ms = ?, is_forced = ?, why = ? WHERE id = ?",
        (row.until_ms, int(row.is_forced), row.why, row.id),
    )
    _note(db, "host.drain", row, {"mode": "move"}, now_ms=now_ms)


def under_way(db: sqlite3.Connection) -> Row | None:
    row = db.execute("SELECT id, begun_ms, until_ms, is_forced, why FROM drains").fetchone()
    return None if row is None else Row(row[0], row[1], row[2], bool(row[3]), row[4])


def undo(db: sqlite3.Connection, row: Row, why: str, *, now_ms: int) -> None:
    """There is no drain any more. What it put to sleep is still wanted."""
    db.execute("DELETE FROM drains WHERE id = ?", (row.id,))
    _note(db, "host.drain_undone", row, {"reason": why}, now_ms=now_ms)


def want(db: sqlite3.Connection, row: Row) -> None:
    """All that runs now is to run again. May be called again: who was put to sleep by this drain stays wanted."""
    db.execute("UPDATE sandboxes SET wanted = ? WHERE state = 'running' AND wanted IS NOT ?", (row.id, row.id))


def wanted(db: sqlite3.Connection) -> dict[str, str]:
    """The sandboxes that are to run again, oldest first, and the drain of each. What has ended is owed nothing."""
    rows = db.execute(
        "SELECT id, wanted FROM sandboxes WHERE wanted IS NOT NULL AND state NOT IN ('stopped', 'error')"
        " ORDER BY created_ms, id"
    )
    return {row[0]: row[1] for row in rows}


def drain_of(db: sqlite3.Connection, sandbox_id: str) -> str | None:
    """The drain that put it to sleep, if it is still to be brought back."""
    return wanted(db).get(sandbox_id)


def settle(db: sqlite3.Connection, sandbox_id: str, why: str | None, *, now_ms: int) -> None:
    """It is owed nothing more: it runs, or `why` says why it sleeps."""
    db.execute("UPDATE sandboxes SET wanted = NULL WHERE id = ?", (sandbox_id,))
    if why is not None:
        sandboxes.tell(db, sandbox_id, "not_resumed", {"reason": why}, at_ms=now_ms)
        db.execute("UPDATE sandboxes SET reason = ? WHERE id = ?", (why, sandbox_id))


def _note(
    db: sqlite3.Connection, action: str, row: Row, more: dict[str, Any], *, now_ms: int, request: str | None = None
) -> None:
    told = {"drain": row.id, "until_ms": row.until_ms, "force": row.is_forced, "why": row.why, **more}
    audit.add(db, audit.Entry(now_ms, action, owner="operator", request=request, detail=told))
