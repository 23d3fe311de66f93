"""The one door to SQLite: `from poold.ledger.driver import sqlite3`.

What comes through it is pysqlite3: the standard library's interface, with a SQLite of its own. Debian's 3.40 has the
WAL-reset bug: a checkpoint of one connection that races the writes of another can corrupt the file. Litestream
checkpoints beside us, so every connection to a ledger is of a SQLite without that bug, or poold does not start.
"""

from typing import TYPE_CHECKING

from poold.errors import LedgerError

if TYPE_CHECKING:  # the interface is the same, and pysqlite3 tells no types
    import sqlite3
else:
    from pysqlite3 import dbapi2 as sqlite3

Connection = sqlite3.Connection

__all__ = ["Connection", "sqlite3"]

OLDEST = (3, 51, 3)


def must_be_new(found: tuple[int, ...] = sqlite3.sqlite_version_info) -> None:
    """Raise `LedgerError` if the driver's SQLite has the WAL-reset bug."""
    if found < OLDEST:
        has, needs = (".".join(map(str, version)) for version in (found, OLDEST))
        hint = f"the driver has SQLite {has}, which can corrupt it; install pysqlite3 with {needs} or newer"
        raise LedgerError("opening", "the ledger", hint=hint)
