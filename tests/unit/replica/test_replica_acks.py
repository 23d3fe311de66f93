"""What is acknowledged is in the replica: with a store that is there, away, and back; with a Litestream that dies."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from poold.devstore import S3Server
from poold.errors import LedgerError
from poold.ledger import Ledger, care, events
from poold.ledger.covering import Replication
from poold.ledger.driver import sqlite3
from tests.replicas import Place, in_s3, put, until
from tests.s3faults import open_faults


async def test_what_is_acknowledged_is_in_the_folder(tmp_path: Path) -> None:
    place = Place(tmp_path / "host", tmp_path / "store")
    async with asyncio.timeout(60), place.opened() as (ledger, replica):
        for start in range(0, 30, 10):
            await asyncio.gather(*(ledger.write(partial(put, number=start + n)) for n in range(10)))
            assert await place.numbers() == set(range(start + 10))
        assert (await replica.view())["litestream"]["version"] == "0.5.17"
        assert ledger.lag_s == 0


async def test_what_is_acknowledged_is_in_s3(tmp_path: Path, s3: S3Server) -> None:
    place = in_s3(tmp_path / "host", {**s3.client(), "AWS_CA_BUNDLE": "/nowhere.pem"}, "acks")
    async with asyncio.timeout(60), place.opened() as (ledger, _):
        await asyncio.gather(*(ledger.write(partial(put, number=n)) for n in range(50)))
        assert await place.numbers() == set(range(50))


async def test_while_the_store_is_away_writes_wait_and_then_go_on(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poold.replica.replica.SYNC_S", 3.0)
    async with asyncio.timeout(120), open_faults(s3.ports[0]) as faults:
        place = in_s3(tmp_path / "host", {**s3.client(), "AWS_ENDPOINT_URL": faults.url}, "away")
        async with place.opened() as (ledger, replica):
            await ledger.write(partial(put, number=1))
            faults.unavailable()
            waiting = ledger.submit(partial(put, number=2))
            relaxed = ledger.write(partial(put, number=3), durable=False)
            assert await relaxed == 3  # it survives poold, and waits for nobody
            await until(lambda: not replica.is_up)
            assert not waiting.done()
            assert (ledger.lag_s or 0) > 0
            faults.heal()
            assert await waiting == 2
            await until(lambda: ledger.lag_s == 0)
            assert await place.numbers() == {1, 2, 3}


async def test_a_sync_that_takes_longer_than_we_wait_for_a_call_comes_to_its_end(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a first snapshot of a large ledger does: who gives up a call does not give up what it began."""
    monkeypatch.setattr("poold.replica.replica.SYNC_S", 0.5)
    async with asyncio.timeout(120), open_faults(s3.ports[0]) as faults:
        faults.slow(2.0)
        place = in_s3(tmp_path / "host", {**s3.client(), "AWS_ENDPOINT_URL": faults.url}, "slow")
        async with place.opened() as (ledger, _):
            await ledger.write(partial(put, number=1))
            faults.heal()
            assert await place.numbers() == {1}


async def test_a_write_that_the_store_never_got_fails_clearly_when_the_ledger_is_closed(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poold.ledger.covering.END_S", 0.2)
    monkeypatch.setattr("poold.replica.replica.SYNC_S", 3.0)
    async with asyncio.timeout(120), open_faults(s3.ports[0]) as faults:
        place = in_s3(tmp_path / "host", {**s3.client(), "AWS_ENDPOINT_URL": faults.url}, "closed")
        async with place.opened() as (ledger, replica):
            faults.unavailable()
            waiting = ledger.submit(partial(put, number=1))
            await until(lambda: not replica.is_up)
        with pytest.raises(LedgerError, match="closed before the store had it"):
            await waiting
        faults.heal()
        async with place.opened():  # it was committed, and the next start brings it to the store
            assert await place.numbers() == {1}


async def test_a_host_does_not_begin_before_the_store_has_its_ledger(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poold.ledger.covering.BEGIN_S", 0.5)
    async with asyncio.timeout(120), open_faults(s3.ports[0]) as faults:
        faults.unavailable()
        place = in_s3(tmp_path / "host", {**s3.client(), "AWS_ENDPOINT_URL": faults.url}, "begin")
        with pytest.raises(LedgerError, match="the store did not take it"):
            async with place.opened():
                pass


async def test_a_litestream_that_is_killed_loses_nothing_and_is_started_again(tmp_path: Path) -> None:
    place = Place(tmp_path / "host", tmp_path / "store")
    async with asyncio.timeout(60), place.opened() as (ledger, replica):
        for turn in range(3):
            pid = (await replica.view())["litestream"]["pid"]
            writes = [ledger.submit(partial(put, number=10 * turn + n)) for n in range(5)]
            os.kill(pid, signal.SIGKILL)
            writes += [ledger.submit(partial(put, number=10 * turn + n)) for n in range(5, 10)]
            await asyncio.gather(*writes)
            assert await place.numbers() == set(range(10 * turn + 10))
        assert (await replica.view())["litestream"]["restarts"] == 3


async def test_followers_hear_of_nothing_that_the_replica_does_not_have(tmp_path: Path) -> None:
    """The replica is a gate of the test's own, so that the order is known."""
    gate, calls = asyncio.Event(), 0

    async def cover() -> None:
        nonlocal calls
        calls += 1
        await gate.wait()

    gate.set()
    async with asyncio.timeout(30), Ledger.open(tmp_path / "l.db", replication=Replication(cover, True)) as ledger:
        heard: list[int] = []

        async def follow(stream: str | None) -> None:
            async for batch in ledger.follow(stream, 0):
                heard.extend(event.seq for event in batch)

        followers = [asyncio.ensure_future(follow(stream)) for stream in ("all", None)]
        await ledger.write(partial(put, number=1))
        await until(lambda: heard == [1, 1])
        gate.clear()
        before = calls
        waiting = ledger.submit(partial(put, number=2))
        await until(lambda: calls > before)
        late = ledger.submit(partial(put, number=3))  # while a call is under way: it is for the next one
        await ledger.write(lambda db: None, durable=False)  # both are committed now
        followers.append(asyncio.ensure_future(follow("all")))  # one who comes just now
        await until(lambda: heard == [1, 1, 1])
        assert not waiting.done()
        assert not late.done()
        gate.set()
        assert (await waiting, await late) == (2, 3)
        assert calls == before + 2  # one for each, however many wait
        await until(lambda: sorted(heard) == [1, 1, 1, 2, 2, 2, 3, 3, 3])
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)


async def test_in_mode_local_nobody_waits_for_the_replica_and_it_follows(tmp_path: Path) -> None:
    place = Place(tmp_path / "host", tmp_path / "store")
    async with asyncio.timeout(60), place.opened(holds=False) as (ledger, _):
        await ledger.write(partial(put, number=1))
        await until(lambda: ledger.lag_s == 0)
        assert await place.numbers() == {1}


async def test_a_caller_who_leaves_takes_nothing_with_it(tmp_path: Path) -> None:
    place = Place(tmp_path / "host", tmp_path / "store")
    async with asyncio.timeout(60), place.opened() as (ledger, _):
        leaving = asyncio.ensure_future(ledger.write(partial(put, number=1)))
        await asyncio.sleep(0)
        leaving.cancel()
        await ledger.write(partial(put, number=2))
        assert await place.numbers() == {1, 2}


async def test_a_litestream_that_loses_a_file_of_its_own_while_it_runs_is_started_anew_and_gets_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poold.replica.replica.STUCK_S", 0.5)
    place = Place(tmp_path / "host", tmp_path / "store")
    async with asyncio.timeout(60), place.opened() as (ledger, replica):
        await ledger.write(partial(put, number=1))
        known = sorted((place.folder / "litestream" / "epoch-1" / "ltx" / "0").iterdir())
        known[-1].unlink()
        await ledger.write(partial(put, number=2))
        assert replica.restarts == 1
        assert await place.numbers() == {1, 2}


def put_much(db: sqlite3.Connection, number: int) -> int:
    return events.append(db, "all", "output", {"n": number, "text": "x" * 4000}, at_ms=number)


async def test_the_log_stays_small_and_the_replica_whole_through_many_checkpoints(tmp_path: Path) -> None:
    """Litestream checkpoints while we write, and both are right: several times the log goes round."""
    place = Place(tmp_path / "host", tmp_path / "store")
    async with asyncio.timeout(120), place.opened() as (ledger, _):
        log = place.ledger.with_name("ledger.db-wal")
        for start in range(0, 6000, 200):
            await asyncio.gather(*(ledger.write(partial(put_much, number=n)) for n in range(start, start + 200)))
        assert place.ledger.stat().st_size > 10 << 20  # the checkpoints took place
        assert log.stat().st_size < 16 << 20
        assert await ledger.read(care.check) == []
        assert await place.numbers() == set(range(6000))
