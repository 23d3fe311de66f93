"""The ledger as the daemon has it: write, read, follow."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from poold.errors import LedgerError
from poold.ledger import events
from poold.ledger.connect import CHECKPOINT_PAGES, CHECKPOINT_PAGES_BESIDE, Connection, begin_log, grow_log, open_writer
from poold.ledger.covering import Covering, Replication
from poold.ledger.driver import must_be_new, sqlite3
from poold.ledger.events import Event
from poold.ledger.follow import Followers
from poold.ledger.migrate import migrate
from poold.ledger.readers import Readers
from poold.ledger.writer import Committed, Observe, Writer, acknowledge
from poold.lifetimes import finish

T = TypeVar("T")


class Ledger:
    """Open as a block: `async with Ledger.open(path) as ledger`. One process has it open for writing at a time."""

    def __init__(self, path: Path, db: Connection, observe: Observe | None, replication: Replication | None) -> None:
        self.path = path
        self._readers = Readers(path)
        self._followers = Followers(self.read, self._told_up_to)
        self._covering = None if replication is None else Covering(replication, self._followers.wake)
        self._writer = Writer(path, db, self._settle, observe)
        self._closed = False

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, path: Path, *, observe: Observe | None = None, replication: Replication | None = None
    ) -> AsyncIterator["Ledger"]:
        """The ledger in `path`, brought to this program's version. Each commit is told to `observe(commit_s, group)`.

        With a `replication` it has a replica, and if that holds acknowledgements, the replica has all of it before the
        block begins. When the block is left, what waits to be written is written and acknowledged; what the replica
        does not get in time fails.
        """
        db = await finish(asyncio.to_thread(_open, path, replication is not None), undo=Connection.close)
        ledger = cls(path, db, observe, replication)
        try:
            await finish(asyncio.to_thread(ledger._readers.open))
            async with ledger._covered():
                ledger._writer.start()
                try:
                    yield ledger
                finally:
                    ledger._closed = True
                    ledger._followers.wake_all()  # who still follows is told that it is closed
                    await finish(asyncio.to_thread(ledger._writer.stop))
        finally:
            ledger._closed = True
            await finish(asyncio.to_thread(ledger._close, db))

    async def write(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> T:
        """Run `work` in a transaction and return what it returned, after the commit is on disk.

        If the ledger's replication holds acknowledgements, this is after the replica has the commit, too; while its
        store is away, writes wait. A write that is not `durable` does not wait for it.

        If `work` raises, nothing of it is kept and its error is raised here. It changes the ledger and nothing else: it
        is run a second time if another write of its group fails half-way. If the caller is cancelled meanwhile, the
        write happens all the same. A write that is not `durable` survives the daemon, but not the power: it is for
        what the next start of the host would find out by itself. On a full disk this raises `LedgerFull`; nothing of
        the write is kept then, and nothing that was acknowledged is lost.
        """
        return await self.submit(work, durable=durable)

    def submit(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> "asyncio.Future[T]":
        """As `write`, for a caller who has something else to do meanwhile. Writes happen in the order of the calls."""
        self._must_be_open()
        return self._writer.submit(work, durable=durable)

    async def covered(self) -> None:
        """Return when the replica has all that is committed now; at once if there is none.

        For whoever removes what only the ledger before that change referred to: a successor may restore that one. While
        the store is away, this waits.
        """
        self._must_be_open()
        if self._covering is not None:
            await self._covering.covered()

    async def read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Ask the ledger: all of `question` sees the same state of it. Never waits for a writer."""
        self._must_be_open()
        return await self._readers.read(question)

    def follow(self, stream: str | None, after: int) -> AsyncGenerator[list[Event], None]:
        """The events of `stream` behind number `after`, in batches: those that are there, then each as it is committed.

        With no stream, the events of all of them, and `after` is an id. Goes on until the caller stops; a slow caller
        holds up nobody, and gets larger batches. Close it when you leave (`contextlib.aclosing`).
        """
        return self._followers.follow(stream, after)

    def changes(self, *streams: str) -> AsyncGenerator[None, None]:
        """Once at the beginning, and whenever something of these streams has been committed since the last time.

        Goes on until the caller stops. Close it when you leave (`contextlib.aclosing`).
        """
        return self._followers.changes(*streams)

    @property
    def lag_s(self) -> float | None:
        """For how long the oldest commit waits that the replica may not have; None without a replica."""
        return None if self._covering is None else self._covering.lag_s

    def _told_up_to(self) -> int:
        return events.NEWEST if self._covering is None else self._covering.events

    def _settle(self, committed: Committed) -> None:
        """A group was committed: tell those who wait for it, now or when the replica has it."""
        if self._covering is not None:
            self._covering.add(committed)
            return
        acknowledge(committed.outcomes)
        if committed.touched:
            self._followers.wake(committed.touched)

    @contextlib.asynccontextmanager
    async def _covered(self) -> AsyncIterator[None]:
        if self._covering is None:
            yield
            return
        async with self._covering.running(await self.read(events.newest_id)):
            yield

    def _must_be_open(self) -> None:
        if self._closed:
            raise LedgerError("using", "the ledger", hint="it is closed")

    def _close(self, db: Connection) -> None:
        """The writer's connection is the last to go: the last one checkpoints, and only the writer may."""
        self._readers.close()
        db.close()


def _open(path: Path, has_replica: bool) -> Connection:
    must_be_new()
    try:
        db = open_writer(path, checkpoint_pages=CHECKPOINT_PAGES_BESIDE if has_replica else CHECKPOINT_PAGES)
        try:
            migrate(db)
            if has_replica:
                begin_log(db)
            grow_log(path)
        except BaseException:
            db.close()
            raise
    except sqlite3.Error as error:
        raise LedgerError("opening", f"the ledger {path}", hint=str(error)) from error
    return db
