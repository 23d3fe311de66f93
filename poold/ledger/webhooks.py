"""Who is to be told of the end of tasks: each delivery until somebody took it, or nobody will."""

from dataclasses import dataclass

import orjson

from contract.tasks import Task
from poold.ledger.driver import sqlite3


@dataclass(frozen=True)
class Due:
    """A delivery that is to be tried. Its secret is elsewhere."""

    id: str
    task: str
    owner: str
    url: str
    body: bytes
    tries: int


def add(db: sqlite3.Connection, task: Task, *, now_ms: int) -> None:
    """The task has ended: whoever asked to be told is told."""
    body = orjson.dumps({"event": f"task.{task.state}", "at_ms": now_ms, "task": task.view()}).decode()
    db.execute(
        "INSERT OR IGNORE INTO webhooks (id, task, owner, url, body, created_ms, due_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (f"wh-{task.id[3:]}", task.id, task.owner, task.webhook, body, now_ms, now_ms),
    )


def due(db: sqlite3.Connection, now_ms: int, *, per_owner: int) -> list[Due]:
    """What is due, oldest first: so many of each owner, so that nobody stands in another's way."""
    rows = db.execute(
        "SELECT id, task, owner, url, body, tries FROM ("
        "SELECT *, row_number() OVER (PARTITION BY owner ORDER BY due_ms, id) AS place FROM webhooks"
        " WHERE due_ms IS NOT NULL AND due_ms <= ?) WHERE place <= ? ORDER BY due_ms, id",
        (now_ms, per_owner),
    )
    return [Due(row[0], row[1], row[2], row[3], row[4].encode(), row[5]) for row in rows]


def done(db: sqlite3.Connection, delivery_id: str) -> None:
    """Somebody took it."""
    _tried(db, delivery_id, None, None)


def failed(db: sqlite3.Connection, delivery_id: str, why: str, next_ms: int | None) -> None:
    """Nobody took it; it is tried again at `next_ms`, or given up."""
    _tried(db, delivery_id, why[:500], next_ms)


def waiting(db: sqlite3.Connection) -> set[str]:
    """The tasks of which somebody is still to be told."""
    return {row[0] for row in db.execute("SELECT task FROM webhooks WHERE due_ms IS NOT NULL")}


def _tried(db: sqlite3.Connection, delivery_id: str, why: str | None, next_ms: int | None) -> None:
    db.execute("UPDATE webhooks SET tries = tries + 1, due_ms = ?, why = ? WHERE id = ?", (next_ms, why, delivery_id))
