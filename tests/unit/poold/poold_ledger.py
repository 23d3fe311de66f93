"""A ledger that stands still or takes nothing, for as long as a test says."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from poold.ledger import Ledger
from poold.ledger.driver import sqlite3
from tests.unit.poold.poold_host import LIMIT_S


@contextlib.asynccontextmanager
async def held(ledger: Ledger) -> AsyncIterator[Callable[[], int]]:
    """Writes wait during the block, in their order. Gives a function that counts them."""
    is_held, go_on = threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection) -> None:
        is_held.set()
        go_on.wait(LIMIT_S)

    holding = ledger.submit(hold, durable=False)
    await asyncio.to_thread(is_held.wait, LIMIT_S)
    try:
        yield ledger._writer._queue.qsize
    finally:
        go_on.set()
        await holding


@contextlib.contextmanager
def refusing(path: Path, state: str) -> Iterator[None]:
    """That a sandbox becomes `state` cannot be written down during the block, as on a full disk."""
    broken = f"BEFORE UPDATE ON sandboxes WHEN new.state = '{state}' BEGIN SELECT json('malformed'); END"
    _run(path, f"CREATE TRIGGER broken {broken}")
    try:
        yield
    finally:
        _run(path, "DROP TRIGGER broken")


def _run(path: Path, sql: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(sql)
