"""What a row of a lost ledger may name. It came through the store: a place that is not the row's own is not believed.

Ids become parts of paths and keys, and what a row names in the store is read, given out and in the end removed.
"""

import re

from contract.errors import shown
from poold.ledger import checkpoints, sandboxes, tasks
from poold.ledger.driver import sqlite3

ID = {"sandbox": re.compile(r"sb-[a-z0-9]{16}"), "task": re.compile(r"tk-[a-z0-9]{16}")}
SHA_256 = re.compile(r"[0-9a-f]{64}")
PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
HIBERNATED = re.compile(rf"hibernated/(?P<sandbox>{ID['sandbox'].pattern})/{PART}/")  # all that one has put there
PLACE = re.compile(rf"{HIBERNATED.pattern}{PART}")
GOLDEN = re.compile(rf"goldens/{PART}/{PART}/")


class BadRow(ValueError):
    """A row that is not taken in. It stays where it is, in the replica."""


def must_be_id(kind: str, one: object) -> None:
    if not isinstance(one, str) or not ID[kind].fullmatch(one):
        raise BadRow(f"{shown(one)} is no id of a {kind}")


def must_be_own(db: sqlite3.Connection, kind: str, one: str) -> None:
    """Raise unless the row that is in `db` now can be read, and names nothing but what is its own."""
    if kind == "task":
        tasks.get(db, one)
        for each in checkpoints.listed(db, one):
            if not SHA_256.fullmatch(each.sha256):
                raise BadRow(f"checkpoint {each.number} of {one} has no hash: {shown(each.sha256)}")
        return
    where = sandboxes.get(db, one).hibernated
    found = None if where is None else PLACE.fullmatch(where.key)
    if where is not None and (found is None or found["sandbox"] != one):
        raise BadRow(f"{one} names what is not its own: {shown(where.key)}")


def leftovers_of(old: sqlite3.Connection) -> tuple[list[tuple[str, int]], list[str]]:
    """What a lost host may have left in the store for nobody, and since when; and what it says so of without right."""
    good, bad = [], []
    for prefix, since_ms in old.execute("SELECT prefix, since_ms FROM store_leftovers"):
        found = HIBERNATED.fullmatch(prefix)
        is_its = GOLDEN.fullmatch(prefix) or (found and _is_known(old, found["sandbox"]) and not is_needed(old, prefix))
        if is_its:
            good.append((prefix, since_ms))
        else:
            bad.append(prefix)
    return good, bad


def is_needed(db: sqlite3.Connection, prefix: str) -> bool:
    """Whether a sandbox of this ledger is there."""
    row = db.execute("SELECT 1 FROM sandboxes WHERE instr(hibernated, ?) > 0 LIMIT 1", (prefix,)).fetchone()
    return row is not None


def _is_known(db: sqlite3.Connection, sandbox_id: str) -> bool:
    return db.execute("SELECT 1 FROM sandboxes WHERE id = ?", (sandbox_id,)).fetchone() is not None
