"""What may be in the object store and belongs to nobody: to be removed from there, whoever comes to it."""

from poold.ledger.driver import sqlite3


def add(db: sqlite3.Connection, prefix: str, *, now_ms: int) -> None:
    """Whatever is below `prefix` is to be removed, unless `drop` says otherwise first."""
    db.execute("INSERT OR IGNORE INTO store_leftovers (prefix, since_ms) VALUES (?, ?)", (prefix, now_ms))


def drop(db: sqlite3.Connection, prefix: str) -> None:
    """Nothing is there any more, or it belongs to somebody now. Succeeds if it was not known."""
    db.execute("DELETE FROM store_leftovers WHERE prefix = ?", (prefix,))


def listed(db: sqlite3.Connection) -> list[str]:
    """All of them, the oldest first."""
    return [row[0] for row in db.execute("SELECT prefix FROM store_leftovers ORDER BY since_ms, prefix")]
