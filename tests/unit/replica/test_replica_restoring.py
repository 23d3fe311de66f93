"""A ledger made from a replica: what a successor gets, and what it is told if there is nothing to be had."""

import asyncio
import contextlib
import shutil
from functools import partial
from pathlib import Path

import pytest

from poold.ledger.connect import open_writer
from poold.replica.errors import NothingToRestore, ReplicaDamaged, ReplicaError
from poold.replica.target import Folder, environment, target_at
from tests.replicas import Place, numbers, put


@pytest.fixture
async def place(tmp_path: Path) -> Place:
    """Three acknowledged rows, and nobody there any more."""
    place = Place(tmp_path / "host", tmp_path / "store")
    async with asyncio.timeout(60), place.opened() as (ledger, _):
        for number in range(3):
            await ledger.write(partial(put, number=number))
    return place


def files_of(place: Place) -> list[Path]:
    assert isinstance(place.target, Folder)
    return sorted(place.target.path.rglob("*.ltx"))


def having(place: Place, number: int) -> list[Path]:
    """All files that one of Litestream's transactions is in; -1: the last. Now and then it merges what it has,
    and then there is more than one.
    """
    spans = {file: [int(end, 16) for end in file.stem.split("-")] for file in files_of(place)}
    number = max(last for _, last in spans.values()) if number == -1 else number
    return [file for file, (first, last) in spans.items() if first <= number <= last]


def damaged(data: bytes, how: str) -> bytes:
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]
    return {"truncated": data[:middle], "flipped": flipped, "emptied": b""}[how]


async def test_a_restored_ledger_is_whole_and_overwrites_nothing(place: Place) -> None:
    path = await place.restored()
    assert [file.name for file in place.folder.iterdir() if "restored" in file.name] == ["restored.db"]
    assert numbers(path) == {0, 1, 2}
    with pytest.raises(ReplicaError, match="there is such a file already"):
        await place.restored()
    async with place.opened() as (ledger, _):  # and the host that wrote it goes on
        await ledger.write(partial(put, number=3))
    assert await place.numbers() == {0, 1, 2, 3}


async def test_where_there_is_no_replica_that_is_said(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path / "store")
    with pytest.raises(NothingToRestore, match="there is no replica"):
        await place.restored()
    assert [file.name for file in tmp_path.iterdir()] == []


@pytest.mark.parametrize("which", [1, -1])
@pytest.mark.parametrize("how", ["truncated", "flipped", "emptied"])
async def test_a_damaged_replica_is_refused_and_nothing_is_deleted(place: Place, how: str, which: int) -> None:
    for file in having(place, which):
        file.write_bytes(damaged(file.read_bytes(), how))
    before = {file: file.read_bytes() for file in files_of(place)}
    with pytest.raises(ReplicaDamaged):
        await place.restored()
    assert {file: file.read_bytes() for file in files_of(place)} == before
    assert not (place.folder / "restored.db").exists()


async def test_a_replica_without_its_beginning_or_its_middle_is_refused(place: Place) -> None:
    for number in (2, 1):
        kept = {file: file.read_bytes() for file in having(place, number)}
        for file in kept:
            file.unlink()
        with pytest.raises(ReplicaDamaged):
            await place.restored()
        for file, data in kept.items():
            file.write_bytes(data)
    assert await place.numbers() == {0, 1, 2}


async def test_a_replica_of_a_newer_version_is_refused(place: Place) -> None:
    async with place.opened() as (ledger, _):
        await ledger.write(lambda db: db.execute("PRAGMA user_version = 9999"))
    with pytest.raises(ReplicaDamaged, match="version 9999, this program knows"):
        await place.restored()


async def test_a_ledger_that_was_tampered_with_is_refused_when_it_is_restored(place: Place) -> None:
    async with place.opened() as (ledger, _):
        await ledger.write(lambda db: db.execute("DROP TRIGGER events_stay"))
    with pytest.raises(ReplicaDamaged, match="events_stay is not as the migrations made it"):
        await place.restored()


async def test_a_zombie_writes_where_nobody_reads(tmp_path: Path) -> None:
    """An old epoch's Litestream wakes up after its host was taken over, and says that all is well."""
    old = Place(tmp_path / "old", tmp_path / "store")
    new = Place(tmp_path / "new", tmp_path / "store", epoch=2)
    async with asyncio.timeout(90), old.opened() as (zombie, _):
        await zombie.write(partial(put, number=1))
        new.folder.mkdir()
        shutil.move(await old.restored(), new.ledger)
        async with new.opened() as (ledger, _):
            for number in range(10, 20):
                await ledger.write(partial(put, number=number))
                await zombie.write(partial(put, number=100 + number))  # acknowledged: it does not know better
            assert await new.numbers() == {1, *range(10, 20)}
        assert await new.numbers() == {1, *range(10, 20)}
    assert await new.numbers() == {1, *range(10, 20)}


async def test_the_next_epoch_of_the_same_host_begins_with_a_replica_of_all(place: Place) -> None:
    place.epoch = 2
    async with asyncio.timeout(60), place.opened() as (ledger, _):
        assert await place.numbers() == {0, 1, 2}
        await ledger.write(partial(put, number=3))
        assert await place.numbers() == {0, 1, 2, 3}
    assert [file.name for file in (place.folder / "litestream").glob("epoch-*")] == ["epoch-2"]


async def test_what_a_host_wrote_while_litestream_was_away_is_in_the_replica_after_it(place: Place) -> None:
    """As after some time without a store: the log was written over meanwhile."""
    with contextlib.closing(open_writer(place.ledger)) as db:
        for number in range(10, 20):
            put(db, number)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    async with asyncio.timeout(60), place.opened():
        assert await place.numbers() == {0, 1, 2, *range(10, 20)}


async def test_a_litestream_that_lost_what_it_knew_does_not_say_that_all_is_well(place: Place) -> None:
    """It would count from one again, which the replica is far beyond."""
    shutil.rmtree(place.folder / "litestream" / "epoch-1")
    async with asyncio.timeout(60), place.opened() as (ledger, _):
        await ledger.write(partial(put, number=3))
        assert await place.numbers() == {0, 1, 2, 3}


def test_litestream_gets_what_it_needs_of_the_environment_and_no_more() -> None:
    ours = {"AWS_ACCESS_KEY_ID": "k", "AWS_CA_BUNDLE": "/ca.pem", "POOLD_SECRETS": "/s", "HOME": "/root"}
    assert environment(ours) == {"AWS_ACCESS_KEY_ID": "k", "SSL_CERT_FILE": "/ca.pem", "HOME": "/root"}
    assert environment({"SSL_CERT_FILE": "/own.pem", "AWS_CA_BUNDLE": "/ca.pem"}) == {"SSL_CERT_FILE": "/own.pem"}


@pytest.mark.parametrize("text", ["s3://bucket", "s3:///path", "http://bucket/path", "s3://bucket/"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ReplicaError, match="must be a folder or s3"):
        target_at(text)


@pytest.mark.parametrize("text", ["/srv/store/ledger/host-1/3", "s3://bucket/a/ledger/host-1/3"])
def test_a_place_is_told_as_it_was_given(text: str) -> None:
    assert str(target_at(text)) == text
