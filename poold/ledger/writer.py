"""The one thread that writes: what waits at the same time shares one commit, and is acknowledged after it."""

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poold.errors import LedgerError, LedgerFull
from poold.ledger import events
from poold.ledger.connect import Connection
from poold.ledger.driver import sqlite3

Work = Callable[[sqlite3.Connection], Any]
Write = tuple[Work, "asyncio.Future[Any]", bool]  # who is to be told, and whether it has to be on disk before
Outcome = tuple["asyncio.Future[Any]", Any, BaseException | None, bool]  # as in `Write`, with what came of it
Observe = Callable[[float, int], None]

MAX_GROUP = 256  # writes that share one commit; more would only make the first of them wait longer
# After these SQLite may have taken the whole transaction back, so the whole group has to go.
SHARED = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CORRUPT})
NO_ROOM_BYTES = 1 << 20  # a disk with less than this has failed because it is full, whatever it says


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a group: told to the loop in one piece."""

    outcomes: list[Outcome]
    touched: set[str]  # streams that have new events
    newest: int  # the id of the newest of them; 0 if there is none
    took_s: float


Settle = Callable[[Committed], None]


class Writer:
    """Owns the writing connection from `start` until `stop`. What it committed is told by `settle`, in the loop."""

    def __init__(self, path: Path, db: Connection, settle: Settle, observe: Observe | None) -> None:
        self._path = path
        self._db = db
        self._settle = settle
        self._observe = observe
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write_all, name="ledger", daemon=True)
        self._durable: bool | None = None  # what the connection is set to

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Do what waits, and end. Blocks until then."""
        if self._thread.ident is not None:
            self._queue.put(None)
            self._thread.join()

    def submit(self, work: Work, *, durable: bool) -> "asyncio.Future[Any]":
        done: asyncio.Future[Any] = self._loop.create_future()
        self._queue.put((work, done, durable))
        return done

    def _write_all(self) -> None:
        """The thread: take what waits, run it in one transaction, acknowledge after the commit."""
        closing = False
        while not closing and (first := self._queue.get()) is not None:
            group = [first]
            with contextlib.suppress(queue.Empty):
                while len(group) < MAX_GROUP:
                    following = self._queue.get_nowait()
                    if following is None:
                        closing = True
                        break
                    group.append(following)
            committed = self._commit(group)
            with contextlib.suppress(RuntimeError):  # the loop is gone, and so is everyone who waited
                self._loop.call_soon_threadsafe(self._done, committed)

    def _commit(self, group: list[Write]) -> Committed:
        db = self._db
        db.touched = set()
        newest = 0
        began = time.perf_counter()
        try:
            self._flush_when(any(durable for _, _, durable in group))
            # A savepoint for each write costs as much as the write: SQLite copies every page that it touches. So there
            # are some only in a group in which one failed half-way.
            outcomes = _together(db, group) or _apart(db, group)
            if db.touched:
                newest = events.newest_id(db)
            db.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                db.take_back()
            outcomes = [(done, None, self._fault(error), durable) for _, done, durable in group]
        return Committed(outcomes, db.touched, newest, time.perf_counter() - began)

    def _flush_when(self, durable: bool) -> None:
        """In a write-ahead log, a FULL commit is flushed to the disk and a NORMAL one is not."""
        if durable is not self._durable:
            self._db.execute("PRAGMA synchronous = FULL" if durable else "PRAGMA synchronous = NORMAL")
            self._durable = durable

    def _fault(self, error: BaseException) -> LedgerError | LedgerFull:
        if isinstance(error, sqlite3.Error) and self._is_full(_code(error)):
            return LedgerFull(self._path)
        return LedgerError("writing to", "the ledger", hint=str(error) or type(error).__name__)

    def _is_full(self, code: int | None) -> bool:
        """SQLite says so, or a write to the disk failed and there is no room."""
        if code != sqlite3.SQLITE_IOERR:
            return code == sqlite3.SQLITE_FULL
        with contextlib.suppress(OSError):
            room = os.statvfs(self._path.parent)
            return room.f_bavail * room.f_frsize < NO_ROOM_BYTES
        return False

    def _done(self, committed: Committed) -> None:
        """In the loop's thread."""
        self._settle(committed)
        if self._observe is not None:
            self._observe(committed.took_s, len(committed.outcomes))


def acknowledge(outcomes: Iterable[Outcome]) -> None:
    """Tell those who wait what came of their writes. In the loop's thread."""
    for done, result, error, _ in outcomes:
        if done.done():  # its caller was cancelled; the write is done all the same
            continue
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
            done.exception()  # a caller that was cancelled does not look any more


def _together(db: Connection, group: list[Write]) -> list[Outcome] | None:
    """Run all of a group in one transaction, or change nothing and return None: one failed half-way."""
    outcomes: list[Outcome] = []
    db.execute("BEGIN IMMEDIATE")
    for work, done, durable in group:
        changes = db.total_changes
        try:
            outcomes.append((done, work(db), None, durable))
        except BaseException as error:
            if _is_shared(db, error):
                raise
            if db.total_changes != changes:
                db.take_back()
                return None
            outcomes.append((done, None, _translated(error), durable))  # refused before it changed anything
    return outcomes


def _apart(db: Connection, group: list[Write]) -> list[Outcome]:
    """Run them in one transaction again, each kept whole or not at all, whatever the others do."""
    db.execute("BEGIN IMMEDIATE")
    return [_in_savepoint(db, write) for write in group]


def _in_savepoint(db: Connection, write: Write) -> Outcome:
    work, done, durable = write
    db.execute("SAVEPOINT one")
    try:
        result = work(db)
    except BaseException as error:
        if _is_shared(db, error):
            raise
        db.take_back("ROLLBACK TO one")
        db.execute("RELEASE one")
        return done, None, _translated(error), durable
    db.execute("RELEASE one")
    return done, result, None, durable


def _is_shared(db: Connection, error: BaseException) -> bool:
    """Not this write's own failure: the disk is full or broken, or the transaction is gone."""
    return not db.in_transaction or (isinstance(error, sqlite3.Error) and _code(error) in SHARED)


def _translated(error: BaseException) -> BaseException:
    """A constraint is the caller's to understand; what else SQLite says is ours."""
    if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError):
        return LedgerError("writing to", "the ledger", hint=str(error))
    return error


def _code(error: sqlite3.Error) -> int | None:
    """SQLite's primary error code; None for an error that is the module's own."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
