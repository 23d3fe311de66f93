"""Checkpoints of tasks: which there are, and what each of them is a change of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from poold.ledger.driver import sqlite3

COLUMNS = "number, base, run, guest_seq, steps, commits, session, used, files, bytes, sha256, at_ms"


@dataclass(frozen=True)
class Checkpoint:
    number: int
    base: int | None  # the one that it changes; None: it is whole by itself
    run: int
    guest_seq: int  # the last of the agent's events that it covers
    steps: int
    commits: int
    session: str | None
    used: dict[str, Any]  # what that session remembers to have used
    files: int
    bytes: int
    sha256: str
    at_ms: int


def add(db: sqlite3.Connection, task_id: str, new: Checkpoint) -> list[Checkpoint]:
    """Write one down that is in the store. Returns those that nobody needs any more, which are forgotten with this."""
    values = (*(getattr(new, name.strip()) for name in COLUMNS.split(",")),)
    values = tuple(orjson.dumps(each).decode() if isinstance(each, dict) else each for each in values)
    marks = ", ".join("?" * len(values))
    db.execute(f"INSERT INTO checkpoints (task, {COLUMNS}) VALUES (?, {marks})", (task_id, *values))  # noqa: S608
    if new.base is not None:
        return []
    old = [each for each in listed(db, task_id) if each.number < new.number]
    db.execute("DELETE FROM checkpoints WHERE task = ? AND number < ?", (task_id, new.number))
    return old


def listed(db: sqlite3.Connection, task_id: str) -> list[Checkpoint]:
    """All that there are, in their order."""
    rows = db.execute(f"SELECT {COLUMNS} FROM checkpoints WHERE task = ? ORDER BY number", (task_id,))  # noqa: S608
    return [_checkpoint(tuple(row)) for row in rows]


def forget(db: sqlite3.Connection, task_id: str) -> None:
    db.execute("DELETE FROM checkpoints WHERE task = ?", (task_id,))


def resumable(found: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Up to the last that has a session. Without one nobody knows what was done: it was kept by an earlier poold."""
    last = max((number for number, each in enumerate(found, 1) if each.session), default=0)
    return list(found[:last])


def chain(found: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The last of them with those that it is a change of, the whole one first. None if one is missing."""
    by_number = {each.number: each for each in found}
    at = found[-1] if found else None
    links: list[Checkpoint] = []
    while at is not None:
        links.insert(0, at)
        if at.base is None:
            return links
        at = by_number.get(at.base)
    return []


def _checkpoint(row: tuple[Any, ...]) -> Checkpoint:
    names = [name.strip() for name in COLUMNS.split(",")]
    told = dict(zip(names, row, strict=True))
    return Checkpoint(**{**told, "used": orjson.loads(told["used"])})
