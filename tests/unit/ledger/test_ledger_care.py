"""Backup and check: a copy that is whole or not there, and a check that finds what it is for."""

import asyncio
import contextlib
import os
from functools import partial
from pathlib import Path

import pytest

from contract.states import Event
from poold.errors import LedgerError
from poold.ledger import Ledger, audit, care, events, sandboxes
from poold.ledger.connect import open_reader
from poold.ledger.driver import sqlite3
from tests.unit.ledger.rows import box, memory


def put(db: sqlite3.Connection, number: int) -> int:
    audit.add(db, audit.Entry(number, "test"))
    return events.append(db, "all", "output", {"n": number}, at_ms=number)


async def test_a_copy_made_while_others_write_is_one_moment_of_the_ledger(tmp_path: Path) -> None:
    path, target = tmp_path / "ledger.db", tmp_path / "copy" / "copy.db"
    target.parent.mkdir()
    async with Ledger.open(path) as ledger:
        for n in range(100):
            await ledger.write(partial(put, number=n), durable=False)
        copying = asyncio.create_task(asyncio.to_thread(care.backup, path, target))
        number = 100
        while not copying.done():
            await ledger.write(partial(put, number=number), durable=False)
            number += 1
        assert await copying == target.stat().st_size
        live = await ledger.read(audit.head)
    assert [file.name for file in target.parent.iterdir()] == ["copy.db"]  # no log, no leftovers
    assert target.stat().st_mode & 0o777 == 0o600
    with contextlib.closing(open_reader(target)) as db:
        assert care.check(db) == []
        copied = audit.head(db)
        assert 100 <= copied.seq <= live.seq
        assert copied.seq == events.newest_id(db)  # both of each write, or neither
    async with Ledger.open(target) as ledger:  # and it serves as a ledger
        await ledger.write(partial(put, number=-1))
        assert (await ledger.read(audit.verify)).rows == copied.seq + 1


def test_a_backup_overwrites_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    path, target = tmp_path / "ledger.db", tmp_path / "precious"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (x)")
    target.write_text("precious")
    with pytest.raises(LedgerError, match="overwrites nothing"):
        care.backup(path, target)
    assert target.read_text() == "precious"
    with pytest.raises(LedgerError, match="No such file"):
        care.backup(path, tmp_path / "nowhere" / "copy.db")
    with pytest.raises(LedgerError, match="unable to open"):
        care.backup(tmp_path / "missing.db", tmp_path / "copy.db")
    assert sorted(os.listdir(tmp_path)) == ["ledger.db", "precious"]


def healthy(db: sqlite3.Connection) -> None:
    for number in range(3):
        sandboxes.add(db, box(number))
        for event in (Event.CLAIM, Event.READY):
            sandboxes.move(db, box(number).id, event, now_ms=number)
    sandboxes.move(db, box(2).id, Event.STOP, now_ms=9)


TROUBLE = {
    "a gap in a stream": (
        "INSERT INTO forgotten SELECT stream FROM events WHERE id = 2; DELETE FROM events WHERE id = 2;"
        " DELETE FROM forgotten",
        "have gaps",
    ),
    "a guard that was dropped": ("DROP TRIGGER audit_is_final", "trigger audit_is_final is not as"),
    "an index that was dropped": ("DROP INDEX events_by_guest", "index events_by_guest"),
    "a table that is not ours": ("CREATE TABLE notes (x)", "table notes"),
    "a newer version": ("PRAGMA user_version = 77", "version 77"),
    "a run that nobody ended": ("UPDATE usage SET ended_ms = NULL", "is stopped, but 1 of its runs"),
    "a run that is missing": ("DELETE FROM usage", "is running, but 0 of its runs"),
    "a broken reference": (
        "PRAGMA foreign_keys = OFF; INSERT INTO prompts VALUES ('nobody', 'text')",
        "prompts row .* names a tasks that is not there",
    ),
    "a broken chain": (
        "INSERT INTO audit (seq, at_ms, owner, action, detail, hash)"
        " SELECT seq + 1, at_ms, owner, action, detail, hash FROM audit ORDER BY seq DESC LIMIT 1",
        "audit chain is broken",
    ),
}


@pytest.mark.parametrize(("change", "said"), TROUBLE.values(), ids=TROUBLE.keys())
def test_a_check_finds(change: str, said: str) -> None:
    with memory() as db:
        healthy(db)
        assert care.check(db) == []
        db.executescript(change)
        problems = care.check(db)
        assert len(problems) in (1, 2)
        with pytest.raises(AssertionError, match=said):
            raise AssertionError(problems[0])


@pytest.mark.parametrize("first", [5, 20])  # the first pages hold the tables' own description
def test_a_check_finds_damaged_pages(tmp_path: Path, first: int) -> None:
    path = tmp_path / "ledger.db"
    with memory() as made:
        healthy(made)
        for number in range(500):
            put(made, number)
        made.execute("VACUUM INTO ?", (str(path),))
    data = bytearray(path.read_bytes())
    for page in range(first, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = os.urandom(64)
    path.write_bytes(data)
    with contextlib.closing(open_reader(path)) as db:
        assert any("damaged" in problem for problem in care.check(db))
