"""The ledger: what was acknowledged is on disk, and one write's failure is nobody else's."""

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from poold.errors import LedgerError
from poold.ledger import Ledger, driver, sandboxes
from poold.ledger.driver import must_be_new, sqlite3
from poold.ledger.readers import READERS
from tests.unit.ledger.rows import box, count


async def test_what_was_acknowledged_is_committed_and_survives(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    async with Ledger.open(path) as ledger:
        await ledger.write(lambda db: sandboxes.add(db, box(1)))
        other = sqlite3.connect(path)  # as another process would see it, now
        assert count(other) == 1
        other.close()
        assert (await ledger.read(lambda db: sandboxes.get(db, box(1).id))) == box(1)
    async with Ledger.open(path) as ledger:
        assert (await ledger.read(lambda db: sandboxes.get(db, box(1).id))) == box(1)


async def test_only_a_write_that_need_not_be_durable_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    def mode(db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA synchronous").fetchone()[0])

    normal, full = 1, 2  # SQLite's words: with a write-ahead log, a normal commit is not flushed to the disk
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert await ledger.write(mode) == full
        assert await ledger.write(mode, durable=False) == normal
        assert await ledger.write(mode) == full
        other = sqlite3.connect(tmp_path / "ledger.db")
        await ledger.write(lambda db: sandboxes.add(db, box(1)), durable=False)
        assert count(other) == 1  # for a daemon that died now it would be there
        other.close()


async def test_a_write_that_fails_harms_no_other_in_its_group(tmp_path: Path) -> None:
    def work(number: int) -> Callable[[sqlite3.Connection], int]:
        def write(db: sqlite3.Connection) -> int:
            sandboxes.add(db, box(number))
            if number % 3 == 0:
                raise ValueError(number)
            if number % 3 == 1:
                sandboxes.add(db, box(number))  # the same again: a constraint
            return number

        return write

    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        outcomes = await asyncio.gather(*(ledger.write(work(n)) for n in range(300)), return_exceptions=True)
        for number, outcome in enumerate(outcomes):
            if number % 3 == 0:
                assert isinstance(outcome, ValueError)
                assert outcome.args == (number,)
            elif number % 3 == 1:
                assert isinstance(outcome, sqlite3.IntegrityError)
            else:
                assert outcome == number
        assert await ledger.read(count) == 100


async def test_a_broken_disk_fails_the_group_and_not_the_next(tmp_path: Path) -> None:
    def broken(_db: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        with pytest.raises(LedgerError, match="disk is full"):
            await ledger.write(broken)
        await ledger.write(lambda db: sandboxes.add(db, box(1)))
        assert await ledger.read(count) == 1


async def test_a_cancelled_caller_leaves_its_write_done(tmp_path: Path) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(db: sqlite3.Connection) -> None:
        started.set()
        assert go_on.wait(10)
        sandboxes.add(db, box(1))

    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        writing = asyncio.create_task(ledger.write(slow))
        await asyncio.to_thread(started.wait, 10)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        go_on.set()
        await ledger.write(lambda db: sandboxes.add(db, box(2)))  # one writer: the first is through then
        assert await ledger.read(count) == 2


async def test_a_cancelled_caller_of_a_failing_write_is_no_warning(tmp_path: Path) -> None:
    started, go_on = threading.Event(), threading.Event()

    def failing(_db: sqlite3.Connection) -> None:
        started.set()
        assert go_on.wait(10)
        raise ValueError

    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        writing = asyncio.create_task(ledger.write(failing))
        await asyncio.to_thread(started.wait, 10)
        writing.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await ledger.write(lambda db: None)


async def test_a_reader_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(db: sqlite3.Connection) -> None:
        sandboxes.add(db, box(2))
        started.set()
        assert go_on.wait(10)

    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        await ledger.write(lambda db: sandboxes.add(db, box(1)))
        writing = asyncio.create_task(ledger.write(slow))
        await asyncio.to_thread(started.wait, 10)
        async with asyncio.timeout(5):
            assert await ledger.read(count) == 1  # what is committed, and no more
        go_on.set()
        await writing
        assert await ledger.read(count) == 2


async def test_two_thousand_writes_at_once_are_all_done(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger.db") as ledger, asyncio.timeout(30):
        await asyncio.gather(*(ledger.write(lambda db, n=n: sandboxes.add(db, box(n))) for n in range(2000)))
        assert await ledger.read(count) == 2000


async def test_writes_that_wait_when_the_ledger_closes_are_done(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    async with Ledger.open(path) as ledger:
        waiting = [asyncio.create_task(ledger.write(lambda db, n=n: sandboxes.add(db, box(n)))) for n in range(500)]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    db = sqlite3.connect(path)
    assert count(db) == 500
    db.close()


async def test_a_closed_ledger_says_so_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        pass
    with pytest.raises(LedgerError, match="closed"):
        await ledger.write(lambda db: None)


async def test_each_commit_is_told_with_its_group(tmp_path: Path) -> None:
    told: list[tuple[float, int]] = []
    async with Ledger.open(tmp_path / "ledger.db", observe=lambda *commit: told.append(commit)) as ledger:
        await asyncio.gather(*(ledger.write(lambda db, n=n: sandboxes.add(db, box(n))) for n in range(100)))
        assert sum(group for _, group in told) == 100
        assert all(took_s > 0 for took_s, _ in told)
        assert max(group for _, group in told) > 1  # what waits at the same time shares a commit


async def test_a_ledger_where_there_can_be_none_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="nowhere/ledger"):
        async with Ledger.open(tmp_path / "nowhere" / "ledger.db"):
            pass


async def test_a_long_question_holds_up_no_short_one(tmp_path: Path) -> None:
    go_on = threading.Event()
    async with Ledger.open(tmp_path / "ledger.db") as ledger, asyncio.timeout(20):
        long = [asyncio.create_task(ledger.read(lambda _db: go_on.wait(15))) for _ in range(READERS - 1)]
        assert await ledger.read(count) == 0
        go_on.set()
        assert all(await asyncio.gather(*long))


def test_a_sqlite_that_can_corrupt_the_ledger_is_refused() -> None:
    must_be_new()
    with pytest.raises(LedgerError, match=r"3\.51\.2.*pysqlite3"):
        must_be_new((3, 51, 2))


def test_nobody_reaches_a_ledger_past_the_driver() -> None:
    """SQLite of the standard library is another one, and may be the one with the bug."""
    folder = Path(driver.__file__).parents[1]
    past = re.compile(r"^\s*(import sqlite3|from sqlite3 import|import pysqlite3|from pysqlite3)", re.MULTILINE)
    found = {path.name for path in folder.rglob("*.py") if past.search(path.read_text())}
    assert found == {"driver.py"}
