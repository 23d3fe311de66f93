"""Which epoch's replica a lost line is carried on from: the newest, and never an older one because that is damaged."""

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from poold.config import Config
from poold.devstore import S3Server
from poold.lease.members import Lost
from poold.replica.accepted import accept
from poold.replica.errors import ReplicaDamaged
from poold.replica.target import Folder
from poold.takeover import newest
from tests.replicas import Place, in_s3, numbers, put

LINE = Lost("host-1", 1, 3)


@pytest.fixture
async def place(tmp_path: Path) -> Place:
    """Epoch 1 has one acknowledged row, epoch 2 two more; in epoch 3 nothing was written."""
    place = Place(tmp_path / "host", tmp_path / "store")
    for epoch in (1, 2):
        place.epoch = epoch
        async with asyncio.timeout(60), place.opened() as (ledger, _):
            for number in range(epoch):
                await ledger.write(partial(put, number=10 * epoch + number))
    return place


def files_of(place: Place) -> list[Path]:
    assert isinstance(place.target, Folder)
    return sorted(place.target.path.rglob("*.ltx"))


def config_of(place: Place) -> Config:
    found = SimpleNamespace(store=place.store, environ=place.environ, state_dir=place.folder)
    return cast(Config, found)


async def made(place: Place) -> tuple[int | None, set[int]]:
    to = place.folder / "made.db"
    epoch = await newest(config_of(place), LINE, to)
    found = numbers(to) if to.exists() else set()
    to.unlink(missing_ok=True)
    return epoch, found


async def test_an_epoch_in_which_nothing_was_written_is_passed_over(place: Place) -> None:
    assert await made(place) == (2, {10, 20, 21})


@pytest.mark.parametrize("how", ["flipped", "emptied", "first gone", "second gone"])
async def test_a_damaged_newest_replica_is_never_passed_over_and_nothing_is_deleted(place: Place, how: str) -> None:
    first, second, *_ = files_of(place)
    if how == "flipped":
        data = bytearray(first.read_bytes())
        data[len(data) // 2] ^= 0x10
        first.write_bytes(data)
    elif how == "emptied":
        first.write_bytes(b"")
    else:
        (first if how == "first gone" else second).unlink()
    before = {file: file.read_bytes() for file in files_of(place)}
    with contextlib.suppress(ReplicaDamaged):
        assert await made(place) == (2, {10, 20, 21})  # Litestream has had the time to write it twice
    assert {file: file.read_bytes() for file in files_of(place)} == before


async def test_all_but_its_last_part_gone_is_damage_too(place: Place) -> None:
    for file in files_of(place)[:-1]:
        file.unlink()
    with pytest.raises(ReplicaDamaged, match="something of it is there"):
        await made(place)


async def test_in_s3_too(s3: S3Server, tmp_path: Path) -> None:
    place = in_s3(tmp_path / "host", s3.client(), "newest")
    place.folder.mkdir()
    assert await made(place) == (None, set())
    async with asyncio.timeout(60), place.opened() as (ledger, _):
        await ledger.write(partial(put, number=1))
    assert await made(place) == (1, {1})


async def test_an_operator_may_accept_an_older_epoch_and_says_so_for_one_line(place: Place) -> None:
    files_of(place)[0].write_bytes(b"")
    accept(place.folder, "host-1", 1)
    assert await made(place) == (1, {10})
    accept(place.folder, "another", 1)
    accept(place.folder, "host-1", 7)  # no epoch of this line: nothing was decided
    with pytest.raises(ReplicaDamaged):
        await made(place)
    accept(place.folder, "host-1", 0)
    assert await made(place) == (None, set())
