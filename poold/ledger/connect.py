"""The connections to the ledger's file: one that writes, any number that read.

**Only the writer's connection checkpoints**, that is, moves pages from the write-ahead log into the file; where the
ledger is replicated Litestream does. SQLite before 3.51.3 can corrupt a file when a checkpoint of one connection races
the writes of another (the "WAL-reset bug"); `driver` has a newer one. Still, whatever reads (readers, backups, checks,
pooldctl) opens the file itself read-only: a connection that cannot write the file checkpoints neither after a commit,
for it has none, nor by being the last to close, for it cannot lock the file for itself. Whoever opens the file
otherwise while poold runs, with Debian's `sqlite3 ledger.db` for example, is outside of this promise.
"""

import contextlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from poold.ledger.driver import sqlite3

# Pages in the log that make the next commit checkpoint. This is SQLite's own number; four times as many gave no more
# commits a second, and longer waits for those that checkpoint.
CHECKPOINT_PAGES = 1_000
# Where Litestream checkpoints, at 1,000 pages, too, this is for when it is away: the log must not grow without end.
# A checkpoint of ours that it did not see costs it a snapshot, and nothing else.
CHECKPOINT_PAGES_BESIDE = 16_000
LOG_BYTES = 8 << 20  # CHECKPOINT_PAGES of 4 KiB, and as much again for a disk that is full
SPARE = 8  # the log is grown only where the disk has this many times its size left
BUSY_S = 30.0  # that another may hold the lock: Litestream does for a moment when it checkpoints
STATEMENTS = 256  # prepared statements that a connection keeps


class Connection(sqlite3.Connection):
    """A connection that remembers to which streams it appended, for those who follow them.

    A stream stays in `touched` when its write is rolled back: waking a follower for nothing costs a read, not waking it
    would cost it the event. `numbers` has the last number of streams that it appended to: it is the only one that does,
    so it need not ask again. Whatever is rolled back is rolled back by `take_back`, which forgets them.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.touched: set[str] = set()
        self.numbers: dict[str, int] = {}

    def take_back(self, statement: str = "ROLLBACK") -> None:
        self.numbers.clear()
        self.execute(statement)


def open_writer(path: Path, *, checkpoint_pages: int = CHECKPOINT_PAGES) -> Connection:
    """The one connection that writes. Whoever opens it sees to it that there is no other."""
    db = sqlite3.connect(
        path,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
        cached_statements=STATEMENTS,
    )
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA temp_store = MEMORY")  # savepoints keep their old pages there: no other disk can be full
        db.execute(f"PRAGMA wal_autocheckpoint = {checkpoint_pages}")
    except BaseException:
        db.close()
        raise
    return db


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, neither rows nor the file: it cannot even checkpoint."""
    db = sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS,
    )
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA query_only = ON")
        db.execute("PRAGMA wal_autocheckpoint = 0")
    except BaseException:
        db.close()
        raise
    return db


def begin_log(db: Connection) -> None:
    """Let the write-ahead log have a frame. One of nothing but zeros is empty for SQLite, and damaged for Litestream,
    which would wait for the first write, as that might wait for it.
    """
    (version,) = db.execute("PRAGMA user_version").fetchone()
    db.execute(f"PRAGMA user_version = {version}")


def grow_log(path: Path) -> None:
    """Give the write-ahead log its full size on disk, before it is needed.

    A commit into room that the file system has already given out flushes data and not the file's description: a fifth
    to a half less time, until the log has been through once. And where the disk is full, when a checkpoint cannot
    extend the file any more, at least half of the log is left: some hundred writes, to end things that take room.
    Zeros behind the last frame are no frames: a frame has the log's salt and a checksum.
    """
    log = path.with_name(path.name + "-wal")
    with contextlib.suppress(OSError), log.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        room = os.statvfs(log)
        if size >= LOG_BYTES or room.f_bavail * room.f_frsize < SPARE * LOG_BYTES:
            return
        try:
            file.seek(size)
            file.write(bytes(LOG_BYTES - size))
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
