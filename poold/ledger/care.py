"""Looking after the file: a copy of it while it is in use, and a check of all that it promises.

Both read only, so both may run beside a poold that writes, in its process or in another.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from poold.errors import LedgerError
from poold.ledger import audit, events
from poold.ledger.connect import open_reader, open_writer
from poold.ledger.driver import sqlite3
from poold.ledger.migrate import migrate, migrations

MAX_PROBLEMS = 20  # of a kind; a file with more has no need of the rest of the list


def backup(path: Path, target: Path) -> int:
    """Copy the ledger as it is at this moment to `target`, and return how many bytes that are. Blocks.

    `target` must not exist; it appears when the copy is whole and on disk, and not before. It is one file without a log
    beside it, and can be put in the place of a ledger as it is.
    """
    if target.exists():
        raise _failed(path, target, "there is such a file already; a backup overwrites nothing")
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        with contextlib.closing(open_reader(path)) as db, _fresh(unfinished):
            db.execute("PRAGMA query_only = OFF")  # for the copy; the ledger itself is still open read-only
            db.execute("VACUUM INTO ?", (str(unfinished),))
            _sync(unfinished)
            os.link(unfinished, target)  # a rename would overwrite
            _sync(target.parent)
            return target.stat().st_size
    except FileExistsError:
        raise _failed(path, target, "there is such a file already; a backup overwrites nothing") from None
    except (OSError, sqlite3.Error) as error:
        raise _failed(path, target, str(error)) from error


def check(db: sqlite3.Connection) -> list[str]:
    """Everything that is wrong with the ledger, for people; empty if nothing is. Reads all of it."""
    problems = [f"the file is damaged: {row[0]}" for row in _some(db, "PRAGMA integrity_check") if row[0] != "ok"]
    problems += _schema_problems(db)
    if problems:  # the rest would stumble over them
        return problems
    problems += [f"{row[0]} row {row[1]} names a {row[2]} that is not there" for row in _some(db, FOREIGN_KEYS)]
    problems += [f"the events of {row[0]} have gaps: {row[1]} events up to number {row[2]}" for row in _some(db, GAPS)]
    problems += [f"sandbox {row[0]} is {row[1]}, but {row[2]} of its runs are open" for row in _some(db, OPEN_RUNS)]
    verdict = audit.verify(db)
    if not verdict.ok:
        problems.append(f"the audit chain is broken: {verdict.why}")
    return problems


def check_copy(path: Path) -> list[str]:
    """As `check`, for a file that nobody else uses, such as one made from a replica. Blocks.

    One of an older version is brought to this program's first; one of a newer is wrong.
    """
    try:
        with contextlib.closing(open_writer(path)) as db:
            found = version(db)
            if not 0 < found <= migrations()[-1][0]:
                return [f"the file has version {found}, this program knows {migrations()[-1][0]}"]
            migrate(db)
            return check(db)
    except sqlite3.Error as error:
        return [f"the file is damaged: {error}"]


def is_there(path: Path) -> bool:
    """Whether there is a ledger in the file: one that is gone, empty, cut short or something else is none.

    Reads little, and changes nothing: what is damaged in its middle is for `check`. Blocks.
    """
    try:
        if not _is_as_long_as_it_says(path):
            return False
        with contextlib.closing(open_reader(path)) as db:
            extent(db)
            return version(db) > 0
    except FileNotFoundError:
        return False
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return False
        if "no such table" in str(error):
            return False
        raise LedgerError("looking at", f"the ledger {path}", hint=str(error)) from error


def _is_as_long_as_it_says(path: Path) -> bool:
    """By its first page. What is in the log may not be in the file yet: if there is something, nobody can tell."""
    with path.open("rb") as file:
        head, size = file.read(100), os.fstat(file.fileno()).st_size
    if not head.startswith(b"SQLite format 3\0") or len(head) < 100:
        return False
    with contextlib.suppress(FileNotFoundError), path.with_name(path.name + "-wal").open("rb") as log:
        if log.read(4).strip(b"\0"):
            return True
    page = int.from_bytes(head[16:18], "big")
    return size >= (65536 if page == 1 else page) * int.from_bytes(head[28:32], "big")


def extent(db: sqlite3.Connection) -> dict[str, int]:
    """How far the ledger has got, in numbers that only grow: to compare a copy of it with it."""
    return {"events": events.newest_id(db), "audit": audit.head(db).seq}


def version(db: sqlite3.Connection) -> int:
    """The number of the last migration that this file has seen."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


FOREIGN_KEYS = "SELECT * FROM pragma_foreign_key_check"
GAPS = (
    "SELECT stream, count(*), max(seq) FROM events WHERE stream NOT IN (SELECT stream FROM forgotten)"
    " GROUP BY stream HAVING count(*) <> max(seq) OR min(seq) <> 1"
)
OPEN_RUNS = (
    "SELECT s.id, s.state, count(u.run) AS runs FROM sandboxes s LEFT JOIN usage u"
    " ON u.sandbox = s.id AND u.ended_ms IS NULL GROUP BY s.id HAVING runs <> (s.state = 'running')"
)


def _some(db: sqlite3.Connection, question: str) -> list[Any]:
    try:
        return db.execute(question).fetchmany(MAX_PROBLEMS)
    except sqlite3.DatabaseError as error:
        return [(error, "?", "?")]


def _schema_problems(db: sqlite3.Connection) -> list[str]:
    """What the migrations make and this file has otherwise: a guard that somebody dropped, for example."""
    newest = migrations()[-1][0]
    if version(db) != newest:
        return [f"the file has version {version(db)}, this program knows {newest}"]
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        migrate(fresh)
        wanted = _schema(fresh)
    try:
        found = _schema(db)
    except sqlite3.DatabaseError as error:
        return [f"the tables' own description is damaged: {error}"]
    changed = sorted(wanted.items() ^ found.items())
    return [f"{name} is not as the migrations made it" for name in dict.fromkeys(name for name, _ in changed)]


def _schema(db: sqlite3.Connection) -> dict[str, str]:
    """Every table, index and trigger of ours, with the SQL that made it. Litestream has two small tables, too."""
    rows = Database(db, recursive_triggers=False, execute_plugins=False).query(
        "SELECT type || ' ' || name AS name, coalesce(sql, '') AS sql FROM sqlite_master"
        " WHERE name NOT LIKE 'sqlite_stat%' AND name NOT GLOB '_litestream_*'"
    )
    return {row["name"]: row["sql"] for row in rows}


@contextlib.contextmanager
def _fresh(path: Path) -> Iterator[None]:
    """An empty file that only we may read, during the block."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        yield
    finally:
        path.unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _failed(path: Path, target: Path, hint: str) -> LedgerError:
    return LedgerError("copying", f"the ledger {path} to {target}", hint=hint)
