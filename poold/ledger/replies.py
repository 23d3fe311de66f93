"""What was answered to a create that may be repeated, for a day. The first answer is the one that is kept."""

from dataclasses import dataclass

from contract.errors import KeyReused
from poold.ledger.driver import sqlite3
from poold.ledger.repeats import KEPT_MS


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes


def get(db: sqlite3.Connection, sandbox_id: str, asked: str, *, now_ms: int) -> Reply | None:
    """What was answered for this id, or None. Raises `KeyReused` if that was to another request."""
    row = db.execute(
        "SELECT asked, status, body FROM replies WHERE sandbox = ? AND at_ms > ?", (sandbox_id, now_ms - KEPT_MS)
    ).fetchone()
    if row is None:
        return None
    if row[0] != asked:
        raise KeyReused("another request was answered with this id: use a new idempotency key", sandbox=sandbox_id)
    return Reply(row[1], row[2])


def keep(db: sqlite3.Connection, sandbox_id: str, asked: str, reply: Reply, *, now_ms: int) -> None:
    db.execute(
        "INSERT INTO replies (sandbox, asked, status, body, at_ms) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (sandbox) DO UPDATE SET asked = excluded.asked, status = excluded.status, body = excluded.body,"
        " at_ms = excluded.at_ms WHERE replies.at_ms <= ?",
        (sandbox_id, asked, reply.status, reply.body, now_ms, now_ms - KEPT_MS),
    )
