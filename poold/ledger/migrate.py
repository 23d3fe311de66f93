"""Numbered SQL files, each applied once, in order, in a transaction, and never edited."""

import re
from importlib.resources import files

from poold.errors import LedgerError
from poold.ledger.driver import sqlite3

NAME = re.compile(r"(\d{4})_\w+\.sql")


def migrations() -> list[tuple[int, str]]:
    """All migrations as (number, SQL), in order."""
    found = []
    for path in files("poold.ledger").joinpath("migrations").iterdir():
        match = NAME.fullmatch(path.name)
        if match:
            found.append((int(match[1]), path.read_text()))
    return sorted(found)


def migrate(db: sqlite3.Connection) -> None:
    """Bring the file to the newest version. Refuses one that is newer than this program."""
    known = migrations()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    newest = known[-1][0]
    if version > newest:
        raise LedgerError("opening", "the ledger", hint=f"it has version {version}, this program knows {newest}")
    for number, sql in known:
        if number > version:
            db.executescript(f"BEGIN IMMEDIATE; {sql}; PRAGMA user_version = {number}; COMMIT;")
