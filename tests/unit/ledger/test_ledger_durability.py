"""What was acknowledged stays: through kill -9, through a full disk, and with readers that close last."""

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from poold.errors import LedgerFull
from poold.ledger import Ledger, audit, care, events
from poold.ledger.connect import LOG_BYTES, open_reader, open_writer
from poold.ledger.driver import sqlite3
from poold.ledger.migrate import migrate
from tests.unit.ledger.rows import box, count

ROOT = Path(__file__).parents[3]
KILLS = 6
DISK_MB = 4


def numbers(path: Path) -> set[int]:
    with contextlib.closing(open_reader(path)) as db:
        return {row[0] for row in db.execute("SELECT data ->> 'n' FROM events WHERE stream = 'all'")}


@pytest.mark.parametrize("seed", range(KILLS))
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, seed: int) -> None:
    """Killed twice, at moments that the seed gives: the second start goes on in the file of the first."""
    path = tmp_path / "ledger.db"
    chance = random.Random(seed)
    acknowledged: set[int] = set()
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.ledger.doomed_writer", str(path)], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        try:
            acknowledged.add(int(writer.stdout.readline()))
            time.sleep(chance.random() * 0.5)
        finally:
            writer.kill()
            rest, _ = writer.communicate()
        acknowledged |= {int(line) for line in rest.splitlines()}
        assert acknowledged <= numbers(path)
        with contextlib.closing(open_reader(path)) as db:
            assert care.check(db) == []
            for number in random.Random(seed).sample(sorted(acknowledged), min(20, len(acknowledged))):
                assert len(events.after(db, box(number).id, 0, 10)) == 4
    assert len(acknowledged) > 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MiB, gone after the test."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "warren-test", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def fill(disk: Path) -> Path:
    """Take all the room that is left."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    assert shutil.disk_usage(disk).free == 0
    return filler


def put(db: sqlite3.Connection, number: int) -> int:
    audit.add(db, audit.Entry(number, "test", detail={"n": number}))
    return events.append(db, "all", "output", {"n": number, "text": "x" * 1000}, at_ms=number)


async def until_full(ledger: Ledger, first: int, acknowledged: set[int]) -> int:
    """Write on until the ledger says that the disk is full; returns the number that was refused first."""
    for start in range(first, first + 100_000, 10):
        turn = range(start, start + 10)
        outcomes = await asyncio.gather(*(ledger.write(partial(put, number=n)) for n in turn), return_exceptions=True)
        done = {n for n, outcome in zip(turn, outcomes, strict=True) if not isinstance(outcome, BaseException)}
        acknowledged |= done
        refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if refused:
            assert all(isinstance(error, LedgerFull) for error in refused), refused
            return min(set(turn) - done)
    raise AssertionError("the disk was never full")


async def test_a_full_disk_refuses_and_heals_and_loses_nothing(small_disk: Path) -> None:
    path = small_disk / "ledger.db"
    acknowledged: set[int] = set()
    async with Ledger.open(path) as ledger, asyncio.timeout(60):
        first = 0
        for _ in range(3):  # full, healed, and full again
            filler = fill(small_disk)
            first = await until_full(ledger, first, acknowledged) + 10
            for number in range(3):  # it stays so, and says what helps
                with pytest.raises(LedgerFull, match="make room") as refusal:
                    await ledger.write(partial(put, number=10**6 + number))
                assert (refusal.value.status, refusal.value.code) == (503, "ledger_full")
                assert refusal.value.retry_after_s > 0
            assert await ledger.read(partial(count, table="events")) == len(acknowledged)  # reading goes on
            filler.unlink()
            for number in range(first, first + 20):
                await ledger.write(partial(put, number=number))
                acknowledged.add(number)
            first += 20
            assert await ledger.read(care.check) == []
    assert numbers(path) == acknowledged
    async with Ledger.open(path) as ledger:
        assert await ledger.read(care.check) == []


def put_much(db: sqlite3.Connection, number: int) -> None:
    """More than SQLite keeps in memory, so that it fails in the middle of the work and not at the commit."""
    for turn in range(2 * DISK_MB):
        events.append(db, "all", "output", {"n": number + turn, "text": "x" * (1 << 20)}, at_ms=number)


async def test_a_write_that_fills_the_disk_half_way_leaves_no_trace(small_disk: Path) -> None:
    async with Ledger.open(small_disk / "ledger.db") as ledger, asyncio.timeout(60):
        await ledger.write(partial(put, number=1))
        with pytest.raises(LedgerFull):
            await ledger.write(partial(put_much, number=1000))
        await ledger.write(partial(put, number=2))
        beside = [ledger.submit(work) for work in (partial(put, number=3), partial(put_much, number=1000))]
        outcomes = await asyncio.gather(*beside, return_exceptions=True)
        assert isinstance(outcomes[1], LedgerFull)
        assert isinstance(outcomes[0], LedgerFull | int)  # in one group with the other, or before it
        await ledger.write(partial(put, number=4))
        assert await ledger.read(care.check) == []
    assert numbers(small_disk / "ledger.db") == {1, 2, 4} | ({3} if isinstance(outcomes[0], int) else set())


async def test_a_ledger_that_is_closed_on_a_full_disk_is_whole_when_it_is_opened_again(small_disk: Path) -> None:
    path = small_disk / "ledger.db"
    acknowledged: set[int] = set()
    async with Ledger.open(path) as ledger, asyncio.timeout(60):
        fill(small_disk)
        await until_full(ledger, 0, acknowledged)
    assert numbers(path) == acknowledged
    (small_disk / "filler").unlink()
    async with Ledger.open(path) as ledger:
        await ledger.write(partial(put, number=-1))
        assert await ledger.read(care.check) == []
    assert numbers(path) == acknowledged | {-1}


async def test_the_log_has_its_room_from_the_start_and_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    async with Ledger.open(path) as ledger:
        log = path.with_name("ledger.db-wal")
        assert log.stat().st_blocks * 512 >= LOG_BYTES
        for start in range(0, 9000, 300):  # more than goes into it: it has been reused
            await asyncio.gather(*(ledger.write(partial(put, number=start + n), durable=False) for n in range(300)))
        assert LOG_BYTES <= log.stat().st_size < 2 * LOG_BYTES
        assert path.stat().st_size > 9_000_000  # the checkpoints took place
        assert await ledger.read(care.check) == []


def test_a_reader_never_checkpoints_even_when_it_closes_last(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    program = (  # as if it were killed: the log stays
        "import os, pathlib, sys\n"
        "from poold.ledger.connect import open_writer\n"
        "from poold.ledger.migrate import migrate\n"
        "db = open_writer(pathlib.Path(sys.argv[1]))\n"
        "migrate(db)\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, check=True)
    log = path.with_name("ledger.db-wal")
    before = path.read_bytes(), log.read_bytes()
    assert len(before[1]) > 10_000
    for _ in range(2):
        reader = open_reader(path)
        assert care.version(reader) >= 2
        reader.close()  # the only one: any other connection would checkpoint and remove the log now
    assert care.backup(path, tmp_path / "copy.db") > 0
    assert (path.read_bytes(), log.read_bytes()) == before
    db = open_writer(path)
    migrate(db)
    db.close()  # as this one does
    assert not log.exists()
