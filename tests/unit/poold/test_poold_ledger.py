"""The ledger: what was acknowledged is on disk, and one write's failure is nobody else's."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import NotFound, WrongState
from contract.models import Sandbox, Shape
from contract.states import TRANSITIONS, Event, State
from poold.errors import LedgerError
from poold.ledger import Ledger, sandboxes
from poold.ledger.migrate import migrate, migrations

SHAPE = Shape("host", 1, 256, 1024)


def box(number: int, created_ms: int = 1000, state: State = State.PENDING) -> Sandbox:
    return Sandbox(f"sb-{number:016}", state, SHAPE, {"n": str(number)}, created_ms, created_ms + 1000)


def memory() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.row_factory = sqlite3.Row
    migrate(db)
    return db


def count(db: sqlite3.Connection) -> int:
    (number,) = db.execute("SELECT count(*) FROM sandboxes").fetchone()
    return int(number)


def test_migrations_are_numbered_without_gaps() -> None:
    assert [number for number, _ in migrations()] == list(range(1, len(migrations()) + 1))


def test_a_file_is_migrated_once() -> None:
    db = memory()
    sandboxes.add(db, box(1))
    migrate(db)
    assert count(db) == 1
    assert db.execute("PRAGMA user_version").fetchone()[0] == migrations()[-1][0]
    db.close()


async def test_a_newer_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 999")
    db.close()
    with pytest.raises(LedgerError, match="999"):
        async with Ledger.open(path):
            pass
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone()[0] == 999
    db.close()


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


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(list(State))), max_size=25),
    st.integers(1, 7),
    st.sets(st.sampled_from(list(State)), min_size=1),
)
def test_pages_together_are_the_list_newest_first(
    rows: list[tuple[int, State]], limit: int, states: set[State]
) -> None:
    db = memory()
    made = [box(number, created_ms, state) for number, (created_ms, state) in enumerate(rows)]
    for sandbox in made:
        sandboxes.add(db, sandbox)
    pages: list[Sandbox] = []
    after = None
    while page := sandboxes.listed(db, states=states, after=after, limit=limit):
        assert len(page) <= limit
        pages += page
        after = page[-1].id
        # What is created meanwhile is newer, and moves nothing.
        sandboxes.add(db, box(1000 + len(pages) * 10 + limit, 10**6, State.RUNNING))
    wanted = [sandbox for sandbox in made if sandbox.state in states]
    assert [s.id for s in pages] == [s.id for s in sorted(wanted, key=lambda s: (s.created_ms, s.id), reverse=True)]
    db.close()


@given(st.lists(st.tuples(st.sampled_from(list(Event)), st.none() | st.text(max_size=5)), max_size=12))
def test_a_move_follows_the_table_and_keeps_the_times(events: list[tuple[Event, str | None]]) -> None:
    db = memory()
    sandboxes.add(db, box(1))
    before = sandboxes.get(db, box(1).id)
    for now_ms, (event, reason) in enumerate(events, 2000):
        try:
            after = sandboxes.move(db, before.id, event, now_ms=now_ms, reason=reason)
        except WrongState:
            assert event not in TRANSITIONS[before.state]
            assert sandboxes.get(db, before.id) == before  # a refused event changes nothing
            continue
        assert after == sandboxes.get(db, before.id)
        assert after.state is TRANSITIONS[before.state][event]
        assert after.reason == (before.reason if reason is None else reason)
        # The first start and the first end are kept.
        first_start = now_ms if after.state is State.RUNNING else None
        assert after.started_ms == (before.started_ms or first_start)
        first_end = now_ms if after.state in (State.STOPPED, State.ERROR) else None
        assert after.ended_ms == (before.ended_ms or first_end)
        assert (after.created_ms, after.expires_ms, after.shape) == (before.created_ms, before.expires_ms, before.shape)
        before = after
    db.close()


def test_the_machine_stays_written_down() -> None:
    db = memory()
    sandboxes.add(db, box(1))
    sandboxes.move(db, box(1).id, Event.CLAIM, now_ms=1, machine="vm-1")
    assert sandboxes.move(db, box(1).id, Event.READY, now_ms=2).machine == "vm-1"
    db.close()


def test_what_is_not_there_is_not_found() -> None:
    db = memory()
    with pytest.raises(NotFound):
        sandboxes.get(db, "sb-nothing")
    with pytest.raises(NotFound):
        sandboxes.move(db, "sb-nothing", Event.STOP, now_ms=1)
    assert sandboxes.listed(db, states=list(State), after="sb-nothing", limit=5) == []
    db.close()
