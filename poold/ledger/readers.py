"""A few threads that read, each question on a connection of its own and in one snapshot."""

import asyncio
import contextlib
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from poold.errors import LedgerError
from poold.ledger.connect import open_reader
from poold.ledger.driver import sqlite3
from poold.lifetimes import finish

T = TypeVar("T")

READERS = 4  # questions that are answered at the same time: enough that a long one holds up no short one


class Readers:
    """Open from the first question until `close`."""

    def __init__(self, path: Path) -> None:
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="ledger-reader")
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._path = path

    def open(self) -> None:
        for _ in range(READERS):
            self._idle.put(open_reader(self._path))

    def close(self) -> None:
        """After the questions that wait have been answered. Blocks until then."""
        self._threads.shutdown()
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    async def read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        return await finish(asyncio.get_running_loop().run_in_executor(self._threads, self._answer, question))

    def _answer(self, question: Callable[[sqlite3.Connection], T]) -> T:
        db = self._idle.get_nowait()  # there are as many as threads
        try:
            db.execute("BEGIN")  # all of one question sees the same ledger
            return question(db)
        except sqlite3.Error as error:
            raise LedgerError("reading", "the ledger", hint=str(error)) from error
        finally:
            with contextlib.suppress(sqlite3.Error):
                db.rollback()
            self._idle.put(db)
