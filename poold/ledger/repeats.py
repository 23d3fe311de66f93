"""Which id was given for an idempotency key, for a day: the same key with the same request gets the same id again."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from contract.errors import KeyReused
from poold.ledger.driver import sqlite3

KEPT_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Repeat:
    """`key` and `asked` are hashes: what a client wrote is not here."""

    key: str
    asked: str
    id: str
    at_ms: int

    def view(self) -> dict[str, Any]:
        """The reply's JSON."""
        return asdict(self)


def find(db: sqlite3.Connection, owner: str, key: str, asked: str, *, now_ms: int) -> str | None:
    """The id that was given for `key`, or None. Raises `KeyReused` if it was given for another request."""
    row = db.execute(
        "SELECT asked, id FROM repeats WHERE owner = ? AND key = ? AND at_ms > ?", (owner, key, now_ms - KEPT_MS)
    ).fetchone()
    if row is None:
        return None
    if row[0] != asked:
        raise KeyReused("this idempotency key was used for another request: use a new one for each", sandbox=row[1])
    return str(row[1])


# Of two for the same key the newer one counts: it was given after the older one had been forgotten.
MERGE = (
    "INSERT INTO repeats (owner, key, asked, id, at_ms) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (owner, key) DO UPDATE SET asked = excluded.asked, id = excluded.id, at_ms = excluded.at_ms"
    " WHERE excluded.at_ms > repeats.at_ms"
)


def merge(db: sqlite3.Connection, owner: str, repeats: Iterable[Repeat], *, now_ms: int) -> None:
    """Remember these, too. One that seems to come from the future (of another host's clock) is from now."""
    rows = [(owner, one.key, one.asked, one.id, min(one.at_ms, now_ms)) for one in repeats]
    db.executemany(MERGE, rows)


def newest(db: sqlite3.Connection, owner: str, limit: int, *, now_ms: int) -> list[Repeat]:
    rows = db.execute(
        "SELECT key, asked, id, at_ms FROM repeats WHERE owner = ? AND at_ms > ? ORDER BY at_ms DESC, key LIMIT ?",
        (owner, now_ms - KEPT_MS, limit),
    )
    return [Repeat(*row) for row in rows]


def forget(db: sqlite3.Connection, owner: str, ids: Iterable[str]) -> None:
    """The keys for which these ids were given are as new."""
    db.executemany("DELETE FROM repeats WHERE owner = ? AND id = ?", [(owner, one) for one in ids])
