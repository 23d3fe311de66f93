"""Ledgers in memory and sandboxes to put in them."""

from collections.abc import Iterator
from contextlib import contextmanager

from contract.models import Rules, Sandbox, Shape
from contract.states import State
from poold.ledger.driver import sqlite3
from poold.ledger.migrate import migrate

SHAPE = Shape("host", 1, 256, 1024)
RULES = Rules(timeout_sec=1)


def box(number: int, created_ms: int = 1000, state: State = State.PENDING, owner: str = "local") -> Sandbox:
    metadata = {"n": str(number)}
    return Sandbox(f"sb-{number:016}", state, SHAPE, metadata, created_ms, created_ms + 1000, RULES, owner)


@contextmanager
def memory() -> Iterator[sqlite3.Connection]:
    """An empty ledger that no file belongs to."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        migrate(db)
        yield db
    finally:
        db.close()


def count(db: sqlite3.Connection, table: str = "sandboxes") -> int:
    (number,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(number)
