"""Files that tasks leave behind: what is known of each. The files themselves are in the store."""

from dataclasses import asdict, dataclass
from typing import Any

from poold.ledger.driver import sqlite3


@dataclass(frozen=True)
class Entry:
    name: str
    kind: str  # patch, archive, output, screenshot
    bytes: int
    sha256: str
    at_ms: int

    def view(self) -> dict[str, Any]:
        """The reply's JSON."""
        return asdict(self)


def put(db: sqlite3.Connection, task_id: str, entry: Entry) -> None:
    """The task has this file now, instead of one of the same name."""
    db.execute(
        "INSERT OR REPLACE INTO artifacts (task, name, kind, bytes, sha256, at_ms) VALUES (?, ?, ?, ?, ?, ?)",
        (task_id, entry.name, entry.kind, entry.bytes, entry.sha256, entry.at_ms),
    )


def get(db: sqlite3.Connection, task_id: str, name: str) -> Entry | None:
    row = db.execute(
        "SELECT name, kind, bytes, sha256, at_ms FROM artifacts WHERE task = ? AND name = ?", (task_id, name)
    ).fetchone()
    return None if row is None else Entry(*row)


def of(db: sqlite3.Connection, task_id: str) -> list[Entry]:
    """All of the task's, by name."""
    rows = db.execute("SELECT name, kind, bytes, sha256, at_ms FROM artifacts WHERE task = ? ORDER BY name", (task_id,))
    return [Entry(*row) for row in rows]
