"""Files in the store: what comes back is what went there, or it is an error that names the part."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poold.hibernate import frames, packing
from poold.hibernate.errors import Damaged
from poold.hibernate.manifest import File, Frame, Part
from poold.hibernate.packing import Told
from poold.store import Store, silent
from tests.unit.hibernate.hibernate_files import (
    MIB,
    PREFIX,
    allocated,
    digest,
    folder_store,
    noise,
    pack,
    sparse_file,
    unpack,
)

RANGES = st.dictionaries(st.integers(0, 3 * MIB), st.binary(min_size=1, max_size=9000), max_size=12)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ranges=RANGES, tail=st.integers(0, 5000))
async def test_any_sparse_file_comes_back_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory, ranges: dict[int, bytes], tail: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    size = max((offset + len(data) for offset, data in ranges.items()), default=0) + tail
    path = sparse_file(folder / "a", size, ranges)
    async with folder_store(folder / "store") as store:
        again = await unpack(store, await pack(store, path), folder / "b")
    assert again.read_bytes() == path.read_bytes()


async def test_a_file_of_many_parts_comes_back_and_its_holes_stay_holes(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "a", 1 << 30, {5 * MIB: noise(30 * MIB), 900 * MIB: noise(MIB, 1)})
    async with folder_store(tmp_path / "store") as store:
        file = await pack(store, path)
        assert len(file.parts) > 3
        assert all(part.bytes <= 13 * MIB for part in file.parts)
        again = await unpack(store, file, tmp_path / "b")
    assert digest(again) == digest(path)
    assert allocated(again) < 40 * MIB


async def test_zeros_that_were_written_cost_nothing(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "a", 64 * MIB, {0: bytes(32 * MIB)})
    async with folder_store(tmp_path / "store") as store:
        file = await pack(store, path)
        assert file.parts == ()
        assert (await unpack(store, file, tmp_path / "b")).read_bytes() == path.read_bytes()


def test_the_same_content_has_the_same_name_whatever_holes_it_has(tmp_path: Path) -> None:
    data = noise(5 * MIB)
    one = sparse_file(tmp_path / "a", 16 * MIB, {8192: data})
    other = sparse_file(tmp_path / "b", 16 * MIB, {0: bytes(8192) + data + bytes(2 * MIB)})
    assert frames.content_hash(one) == frames.content_hash(other)
    other.write_bytes(other.read_bytes()[:-1] + b"x")
    assert frames.content_hash(one) != frames.content_hash(other)


async def test_whoever_watches_hears_of_progress(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = sparse_file(tmp_path / "a", 40 * MIB, {0: noise(40 * MIB)})
    async with folder_store(tmp_path / "store") as store:
        await packing.pack(store, PREFIX, "drive", path, Told(lambda *at: told.append(at), 40 * MIB))
    assert told == sorted(told)
    assert told[-1] == (40 * MIB, 40 * MIB)


# What is in the store is not what was written.


def _object(folder: Path, name: str) -> Path:
    (found,) = [path for path in folder.rglob(f"*{name}*") if path.is_file()]
    return found


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": _flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["drive-00001", "drive-00002"])
async def test_a_damaged_part_is_refused_by_its_name_and_nothing_is_deleted(
    tmp_path: Path, damage: str, name: str
) -> None:
    path = sparse_file(tmp_path / "a", 12 * MIB, {0: noise(12 * MIB)})
    async with folder_store(tmp_path / "store") as store:
        file = await pack(store, path)
        DAMAGES[damage](_object(tmp_path / "store", name))
        before = sorted(path for path in (tmp_path / "store").rglob("*-0000*") if path.is_file())
        with pytest.raises(Damaged, match=name):
            await unpack(store, file, tmp_path / "b")
        with pytest.raises(Damaged, match=name):
            await packing.check(store, PREFIX, [file], Told(silent, 0))
        assert sorted(path for path in (tmp_path / "store").rglob("*-0000*") if path.is_file()) == before


async def _hostile(store: Store, *raws: bytes, size: int = MIB) -> File:
    """A file whose parts were made by somebody who knows how."""
    made = []
    whole = hashlib.sha256()
    for number, raw in enumerate(raws):
        data = frames.compress(raw)
        whole.update(raw)
        name = f"drive-{number:05}"
        await store.put(PREFIX + name, data)
        made.append(Part(name, hashlib.sha256(data).hexdigest(), (Frame(len(data), len(raw)),)))
    return File(size, whole.hexdigest(), tuple(made))


def _raw(*ranges: tuple[int, bytes]) -> bytes:
    return frames._packed(list(ranges))


@pytest.mark.parametrize(
    "raws",
    [
        [_raw((MIB, b"x"))],
        [_raw((MIB - 1, b"xy"))],
        [_raw((1 << 63, b"x"))],
        [_raw((4096, b"x"), (0, b"y"))],
        [_raw((0, b"xx"), (1, b"y"))],
        [_raw((4096, b"x")), _raw((0, b"y"))],
        [_raw((0, b""))],
        [_raw()],
        [b""],
        [b"\xff\xff\xff\xff"],
        [b"\x01\0\0\0" + frames.RANGE.pack(0, 10) + b"short"],
        [b"\x01\0\0\0" + frames.RANGE.pack(0, 1) + b"long"],
    ],
)
async def test_ranges_that_are_not_inside_of_the_file_and_in_order_are_refused(
    tmp_path: Path, raws: list[bytes]
) -> None:
    async with folder_store(tmp_path / "store") as store:
        file = await _hostile(store, *raws)
        with pytest.raises(Damaged, match="drive-0000"):
            await unpack(store, file, tmp_path / "b")
        assert (tmp_path / "b").stat().st_size == MIB


async def test_parts_of_another_file_are_refused(tmp_path: Path) -> None:
    async with folder_store(tmp_path / "store") as store:
        file = await _hostile(store, _raw((0, b"x")))
        with pytest.raises(Damaged, match="not those of one file"):
            await unpack(store, replace(file, sha256="0" * 64), tmp_path / "b")


@pytest.mark.parametrize("raw_bytes", [1, 5, 4 * MIB, 8 * MIB])
def test_a_frame_that_is_larger_than_it_was_said_to_be_is_not_unpacked(raw_bytes: int) -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(64 * MIB))
    with pytest.raises(Damaged):
        frames.decompress("a part", bomb, Frame(len(bomb), raw_bytes))
    unsaid = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(64 * MIB))
    with pytest.raises(Damaged):
        frames.decompress("a part", unsaid, Frame(len(unsaid), raw_bytes))


@pytest.mark.parametrize("data", [b"", b"x", b"\x28\xb5\x2f\xfd", noise(100)])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(Damaged):
        frames.decompress("a part", data, Frame(len(data), 10))


def test_what_stands_behind_a_frame_is_refused() -> None:
    data = frames.compress(b"content") + b"more"
    with pytest.raises(Damaged):
        frames.decompress("a part", data, Frame(len(data), 7))


@pytest.mark.parametrize("rounds", [0, 1, 3, 8, 20, 40])
async def test_a_cancellation_at_any_moment_leaves_no_task_behind(tmp_path: Path, rounds: int) -> None:
    path = sparse_file(tmp_path / "a", 30 * MIB, {0: noise(30 * MIB)})
    async with folder_store(tmp_path / "store") as store:
        file = await pack(store, path)
        for work in (pack(store, path), unpack(store, file, tmp_path / "b")):
            before = asyncio.all_tasks()
            task = asyncio.ensure_future(work)
            for _ in range(rounds):
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.wait([task])
            assert asyncio.all_tasks() - before == set()
