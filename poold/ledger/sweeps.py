"""Workspaces in which something may be left over in the object store: when to look, whoever comes to it."""

from poold.ledger.driver import sqlite3

Due = tuple[str, str]  # owner, empty for a template; and name


def add(db: sqlite3.Connection, owner: str, name: str, *, due_ms: int) -> None:
    """Look then, or earlier if that is written down already."""
    db.execute(
        "INSERT INTO workspace_sweeps (owner, name, due_ms) VALUES (?, ?, ?)"
        " ON CONFLICT (owner, name) DO UPDATE SET due_ms = min(due_ms, excluded.due_ms)",
        (owner, name, due_ms),
    )


def put_off(db: sqlite3.Connection, owner: str, name: str, *, due_ms: int) -> None:
    """Look again then."""
    db.execute("UPDATE workspace_sweeps SET due_ms = ? WHERE owner = ? AND name = ?", (due_ms, owner, name))


def drop(db: sqlite3.Connection, owner: str, name: str) -> None:
    db.execute("DELETE FROM workspace_sweeps WHERE owner = ? AND name = ?", (owner, name))


def due(db: sqlite3.Connection, *, now_ms: int) -> list[Due]:
    rows = db.execute("SELECT owner, name FROM workspace_sweeps WHERE due_ms <= ? ORDER BY due_ms LIMIT 100", (now_ms,))
    return [(row[0], row[1]) for row in rows]
