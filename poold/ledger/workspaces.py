"""What is known of the workspaces of sandboxes, and which may have something left over in the object store."""

from contract.workspaces import Workspace
from poold.ledger.driver import sqlite3
from poold.ledger.sandboxes import workspace_text

Due = tuple[str, str]  # owner, empty for a template; and name


def put(db: sqlite3.Connection, sandbox_id: str, workspace: Workspace) -> None:
    """What is known of the sandbox's workspace now. It is told where that comes from."""
    db.execute("UPDATE sandboxes SET workspace = ? WHERE id = ?", (workspace_text(workspace), sandbox_id))


def end_soon(db: sqlite3.Connection, sandbox_id: str, *, at_ms: int) -> None:
    """The sandbox is to end as soon as its workspace can be saved: running or asleep, its time is up then."""
    db.execute(
        "UPDATE sandboxes SET expires_ms = min(coalesce(expires_ms, :at), :at), on_timeout = 'destroy',"
        " paused_sec = CASE WHEN state IN ('paused', 'hibernated') THEN 1 ELSE paused_sec END"
        " WHERE id = :id AND state NOT IN ('stopped', 'error')",
        {"id": sandbox_id, "at": at_ms},
    )


def sweep_later(db: sqlite3.Connection, owner: str, name: str, *, due_ms: int) -> None:
    """Look then, or earlier if that is written down already."""
    db.execute(
        "INSERT INTO workspace_sweeps (owner, name, due_ms) VALUES (?, ?, ?)"
        " ON CONFLICT (owner, name) DO UPDATE SET due_ms = min(due_ms, excluded.due_ms)",
        (owner, name, due_ms),
    )


def put_off(db: sqlite3.Connection, owner: str, name: str, *, due_ms: int) -> None:
    """Look again then."""
    db.execute("UPDATE workspace_sweeps SET due_ms = ? WHERE owner = ? AND name = ?", (due_ms, owner, name))


def swept(db: sqlite3.Connection, owner: str, name: str) -> None:
    db.execute("DELETE FROM workspace_sweeps WHERE owner = ? AND name = ?", (owner, name))


def due(db: sqlite3.Connection, *, now_ms: int) -> list[Due]:
    rows = db.execute("SELECT owner, name FROM workspace_sweeps WHERE due_ms <= ? ORDER BY due_ms LIMIT 100", (now_ms,))
    return [(row[0], row[1]) for row in rows]
