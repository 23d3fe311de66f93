"""What may be in the object store and belongs to nobody: to be removed from there, whoever comes to it."""

import orjson

from poold.ledger.driver import sqlite3


def add(db: sqlite3.Connection, prefix: str, *, now_ms: int) -> None:
    """Whatever is below `prefix` is to be removed, unless `drop` says otherwise first."""
    db.execute("INSERT OR IGNORE INTO store_leftovers (prefix, since_ms) VALUES (?, ?)", (prefix, now_ms))


def drop(db: sqlite3.Connection, prefix: str) -> None:
    """Nothing is there any more, or it belongs to somebody now. Succeeds if it was not known."""
    db.execute("DELETE FROM store_leftovers WHERE prefix = ?", (prefix,))


def in_store(db: sqlite3.Connection) -> frozenset[str]:
    """Every prefix that this ledger knows of: a sandbox's, or one to be removed by whoever comes to it."""
    named = db.execute("SELECT hibernated FROM sandboxes WHERE hibernated IS NOT NULL")
    keys = [orjson.loads(row[0])["key"] for row in named]
    return frozenset([*(key[: key.rindex("/") + 1] for key in keys), *listed(db)])


def listed(db: sqlite3.Connection) -> list[str]:
    """All of them, the oldest first."""
    return [row[0] for row in db.execute("SELECT prefix FROM store_leftovers ORDER BY since_ms, prefix")]
