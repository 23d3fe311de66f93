"""The writer thread with its group commit, and the reader."""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from poold.errors import LedgerError
from poold.ledger.migrate import migrate
from poold.lifetimes import finish

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]


@dataclass(frozen=True, slots=True)
class Write:
    """One write that waits for its turn, and who is to be told."""

    work: Work
    done: "asyncio.Future[Any]"
    durable: bool


MAX_GROUP = 256  # writes that share one commit; more would only make the first of them wait longer


class Ledger:
    """Open as a block: `async with Ledger.open(path) as ledger`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._writer = threading.Thread(target=self._write_all, name="ledger", daemon=True)
        self._reading = asyncio.Lock()
        self._closed = False
        self._writing_db = self._connect()
        self._reading_db = self._connect()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, path: Path) -> AsyncIterator["Ledger"]:
        ledger = cls(path)
        try:
            await finish(asyncio.to_thread(migrate, ledger._writing_db))
            ledger._writer.start()
            yield ledger
        finally:
            ledger._closed = True
            if ledger._writer.ident is not None:
                ledger._queue.put(None)
                await finish(asyncio.to_thread(ledger._writer.join))
            ledger._writing_db.close()
            ledger._reading_db.close()

    async def write(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> T:
        """Run `work` in a transaction and return what it returned, after the commit is on disk.

        If `work` raises, nothing of it is kept and its error is raised here. If the caller is cancelled meanwhile,
        the write happens all the same. A write that is not `durable` survives the daemon, but not the power: it is for
        what the next start of the host would find out by itself.
        """
        return await asyncio.shield(self.submit(work, durable=durable))

    def submit(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> "asyncio.Future[T]":
        """As `write`, for a caller who has something else to do meanwhile. Writes happen in the order of the calls."""
        if self._closed:
            raise LedgerError("writing to", "the ledger", hint="it is closed")
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(Write(work, done, durable))
        return done

    async def read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Ask the ledger. Never waits for a writer."""
        async with self._reading:
            return await finish(asyncio.to_thread(question, self._reading_db))

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA foreign_keys = ON")
        return db

    def _write_all(self) -> None:
        """The writer thread: take what waits, run it in one transaction, acknowledge after the commit."""
        while (first := self._queue.get()) is not None:
            group = [first]
            closing = False
            with contextlib.suppress(queue.Empty):
                while len(group) < MAX_GROUP and not closing:
                    following = self._queue.get_nowait()
                    if following is None:
                        closing = True
                    else:
                        group.append(following)
            self._commit(group)
            if closing:
                return

    def _commit(self, group: list[Write]) -> None:
        db = self._writing_db
        results: list[tuple[asyncio.Future[Any], Any, BaseException | None]] = []
        try:
            durable = any(write.durable for write in group)
            db.execute("PRAGMA synchronous = FULL" if durable else "PRAGMA synchronous = NORMAL")
            db.execute("BEGIN IMMEDIATE")
            for write in group:
                results.append((write.done, *_in_savepoint(db, write.work)))
            db.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            fault = LedgerError("writing to", "the ledger", hint=str(error))
            results = [(write.done, None, fault) for write in group]
        with contextlib.suppress(RuntimeError):  # the loop is gone, and so is everyone who waited
            self._loop.call_soon_threadsafe(_acknowledge, results)


def _in_savepoint(db: sqlite3.Connection, work: Work) -> tuple[Any, BaseException | None]:
    """One write of a group: kept whole or not at all, whatever the others do."""
    db.execute("SAVEPOINT one")
    try:
        result = work(db)
    except sqlite3.OperationalError:
        raise  # the disk is full or broken: the whole group has to go
    except BaseException as error:
        db.execute("ROLLBACK TO one")
        db.execute("RELEASE one")
        return None, error
    db.execute("RELEASE one")
    return result, None


def _acknowledge(results: list[tuple["asyncio.Future[Any]", Any, BaseException | None]]) -> None:
    for done, result, error in results:
        if done.done():
            continue
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
            done.exception()  # a caller that was cancelled does not look any more
