"""A file that an older program wrote is brought forward with its rows; a newer one is refused and left alone."""

from contextlib import closing
from pathlib import Path

import pytest

from contract.models import Rules
from contract.states import Event, State
from poold.errors import LedgerError
from poold.ledger import Ledger, audit, care, events, sandboxes, usage
from poold.ledger.connect import open_reader
from poold.ledger.driver import sqlite3
from poold.ledger.migrate import migrate, migrations
from tests.unit.ledger.rows import box, count, memory

# id, state, created, expires, started, ended, machine, reason
ROWS = [
    ("sb-running", "running", 1000, 61_000, 1500, None, "vm-1", None),
    ("sb-stopped", "stopped", 1000, 3_601_000, 1500, 9500, "vm-2", "destroyed by request"),
    ("sb-failed", "error", 1000, 1400, None, 2000, None, "no room"),
    ("sb-endless", "starting", 1000, None, None, None, None, None),
]


def first_version(path: Path) -> None:
    """A file as the first program left it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(f"{migrations()[0][1]}; PRAGMA user_version = 1;")
        for id_, state, *times in ROWS:
            db.execute(
                "INSERT INTO sandboxes (id, state, image, vcpus, memory_mb, disk_mb, metadata, created_ms, expires_ms,"
                " started_ms, ended_ms, machine, reason)"
                " VALUES (?, ?, 'host', 2, 512, 1024, '{\"a\":\"b\"}', ?, ?, ?, ?, ?, ?)",
                (id_, state, *times),
            )


def test_migrations_are_numbered_without_gaps() -> None:
    assert [number for number, _ in migrations()] == list(range(1, len(migrations()) + 1))


def test_a_file_is_migrated_once() -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        migrate(db)
        assert count(db) == 1
        assert care.version(db) == migrations()[-1][0]


async def test_rows_of_the_first_version_are_all_there_and_have_what_was_true_then(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    first_version(path)
    async with Ledger.open(path) as ledger:
        found = {id_: await ledger.read(lambda db, id_=id_: sandboxes.get(db, id_)) for id_, *_ in ROWS}
        for id_, state, created, expires, started, ended, machine, reason in ROWS:
            now = found[id_]
            assert (now.state, now.created_ms, now.expires_ms) == (State(state), created, expires)
            assert (now.started_ms, now.ended_ms, now.machine, now.reason) == (started, ended, machine, reason)
            assert (now.owner, now.generation, now.paused_ms, now.metadata) == ("local", 1, None, {"a": "b"})
        timeouts = {id_: sandbox.rules for id_, sandbox in found.items()}
        assert timeouts == {
            "sb-running": Rules(60),
            "sb-stopped": Rules(3600),
            "sb-failed": Rules(1),  # less than a second is no timeout
            "sb-endless": Rules(3600),
        }
        assert await ledger.read(care.check) == []


async def test_a_sandbox_of_the_first_version_goes_on_and_what_it_used_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    first_version(path)
    async with Ledger.open(path) as ledger:
        (total,) = await ledger.read(lambda db: usage.totals(db, now_ms=2500))
        assert (total.runs, total.vcpu_s, total.gib_s) == (2, 2 * (1 + 8), 0.5 * (1 + 8))
        await ledger.write(lambda db: sandboxes.move(db, "sb-running", Event.STOP, now_ms=3500))
        (total,) = await ledger.read(lambda db: usage.totals(db, now_ms=10**6))
        assert total.vcpu_s == 2 * (2 + 8)
        stream = await ledger.read(lambda db: events.after(db, "sb-running", 0, 10))
        assert [(event.seq, event.kind) for event in stream] == [(1, "stopped")]
        assert (await ledger.read(audit.verify)).rows == 1
        assert await ledger.read(care.check) == []


async def test_a_newer_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 999")
    with pytest.raises(LedgerError, match="999"):
        async with Ledger.open(path):
            pass
    with closing(open_reader(path)) as db:
        assert care.version(db) == 999
        assert db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0


async def test_a_file_that_is_no_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"this is a letter, not a ledger\n" * 1000)
    with pytest.raises(LedgerError, match="not a database"):
        async with Ledger.open(path):
            pass
    assert path.read_bytes() == b"this is a letter, not a ledger\n" * 1000


@pytest.mark.parametrize("number", range(1, len(migrations()) + 1))
def test_a_migration_that_is_cut_short_leaves_the_version_before(tmp_path: Path, number: int) -> None:
    path = tmp_path / "ledger.db"
    known = migrations()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for done, sql in known[: number - 1]:
            db.executescript(f"{sql}; PRAGMA user_version = {done};")
        before = db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        with pytest.raises(sqlite3.OperationalError):
            db.executescript(f"BEGIN IMMEDIATE; {known[number - 1][1]}; broken; COMMIT;")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:  # as after a crash
        assert db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall() == before
        migrate(db)
        assert care.check(db) == []
