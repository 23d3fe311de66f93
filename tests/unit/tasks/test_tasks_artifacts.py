"""The files of a task are whole or not there, read in parts as asked, and gone with it."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.archives.errors import StoreFull
from poold.errors import HostFault
from poold.tasks.artifacts import Artifacts, Stored, part_of
from poold.tasks.errors import ArtifactTooLarge, BadRange, NoArtifact

ONE, TWO = "tk-" + "a" * 16, "tk-" + "b" * 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store" / "tasks"


@pytest.fixture
def artifacts(folder: Path) -> Artifacts:
    return Artifacts(folder)


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for each in data:
        yield each


async def content(artifacts: Artifacts, name: str, asked: str | None = None, task_id: str = ONE) -> bytes:
    async with artifacts.open_part(task_id, name, asked) as part:
        data = b"".join([chunk async for chunk in part.chunks()])
        assert len(data) == part.length
        return data


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


async def test_what_is_put_is_there_with_its_hash(artifacts: Artifacts, folder: Path) -> None:
    data = os.urandom(1 << 20)
    expected = hashlib.sha256(data).hexdigest()
    assert await artifacts.put(ONE, "a.bin", data) == Stored("a.bin", len(data), expected)
    streamed = await artifacts.put(ONE, "b.bin", pieces(data[:100], b"", data[100:]))
    assert streamed == Stored("b.bin", len(data), expected)
    assert await content(artifacts, "a.bin") == await content(artifacts, "b.bin") == data
    assert (folder / ONE / "a.bin").stat().st_mode & 0o777 == 0o600
    assert (await artifacts.put(ONE, "a.bin", b"")).bytes == 0
    assert await content(artifacts, "a.bin") == b""


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "../a", "a b", "ä", "a" * 129, "a\n", "a\0"])
async def test_what_is_no_name_is_not_found(artifacts: Artifacts, name: str) -> None:
    with pytest.raises(NoArtifact):
        await artifacts.put(ONE, name, b"x")
    with pytest.raises(NoArtifact):
        await content(artifacts, name)
    with pytest.raises(NoArtifact):
        await artifacts.remove(name)


async def test_what_is_not_there_is_not_found(artifacts: Artifacts) -> None:
    await artifacts.put(ONE, "a" * 128, b"x")
    for task_id, name in ((ONE, "a"), (TWO, "a" * 128)):
        with pytest.raises(NoArtifact) as caught:
            await content(artifacts, name, task_id=task_id)
        assert caught.value.status == 404


async def test_too_much_is_refused_and_what_was_there_stays(artifacts: Artifacts, folder: Path) -> None:
    await artifacts.put(ONE, "a", b"before", limit_bytes=6)
    for data in (b"1234567", pieces(b"1234", b"567")):
        with pytest.raises(ArtifactTooLarge, match="more than 6 bytes"):
            await artifacts.put(ONE, "a", data, limit_bytes=6)
    assert await content(artifacts, "a") == b"before"
    assert everything_in(folder) == [ONE, f"{ONE}/a"]


async def test_a_stream_that_fails_or_is_cancelled_leaves_what_was_there(artifacts: Artifacts, folder: Path) -> None:
    begun = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield b"half"
        begun.set()
        await asyncio.Event().wait()

    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await artifacts.put(ONE, "a", broken())
    task = asyncio.create_task(artifacts.put(ONE, "a", stuck()))
    await begun.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert everything_in(folder) == [ONE]


@pytest.mark.parametrize(("number", "error"), [(28, StoreFull), (122, StoreFull), (5, HostFault)])
async def test_a_disk_that_fails_is_told(
    artifacts: Artifacts, folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(error):
        await artifacts.put(ONE, "a", b"x")
    assert everything_in(folder) == [ONE]


async def test_parts_are_what_was_asked_for(artifacts: Artifacts) -> None:
    await artifacts.put(ONE, "a", b"0123456789")
    for asked, expected in (
        ("bytes=0-0", b"0"),
        ("bytes=2-4", b"234"),
        ("bytes=7-", b"789"),
        ("bytes=-3", b"789"),
        ("bytes=-99", b"0123456789"),
        ("bytes=5-99", b"56789"),
        (" Bytes = 1-2 ", b"12"),
    ):
        async with artifacts.open_part(ONE, "a", asked) as part:
            assert not part.is_whole
            assert part.content_range == f"bytes {part.first}-{part.first + len(expected) - 1}/10"
        assert await content(artifacts, "a", asked) == expected


@pytest.mark.parametrize(
    "asked", [None, "", "bytes", "bytes=-", "bytes=5-2", "bytes=0-1,3-4", "lines=1-2", "bytes=a-b"]
)
async def test_what_is_not_understood_is_everything(artifacts: Artifacts, asked: str | None) -> None:
    await artifacts.put(ONE, "a", b"0123456789")
    async with artifacts.open_part(ONE, "a", asked) as part:
        assert (part.is_whole, part.length, part.total) == (True, 10, 10)


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=10-11", "bytes=99-", "bytes=-0"])
async def test_what_is_not_in_it_is_refused_with_its_length(artifacts: Artifacts, asked: str) -> None:
    await artifacts.put(ONE, "a", b"0123456789")
    with pytest.raises(BadRange) as caught:
        await content(artifacts, "a", asked)
    assert (caught.value.status, caught.value.details["bytes"]) == (416, 10)


@given(st.integers(0, 50), st.text("bytes=-0123456789, ", max_size=20))
def test_a_part_is_always_within_the_file(total: int, asked: str) -> None:
    try:
        found = part_of(total, asked)
    except BadRange:
        return
    if found is not None:
        first, length = found
        assert 0 <= first < first + length <= total


async def test_a_reader_keeps_what_is_removed_under_its_hands(artifacts: Artifacts) -> None:
    data = os.urandom(1 << 20)
    await artifacts.put(ONE, "a", data)
    async with artifacts.open_part(ONE, "a") as part:
        read = part.chunks()
        first = await anext(read)
        await artifacts.remove(ONE)
        assert first + b"".join([chunk async for chunk in read]) == data
    with pytest.raises(NoArtifact):
        await content(artifacts, "a")


async def test_removed_is_all_of_one_task_and_nothing_of_another(artifacts: Artifacts, folder: Path) -> None:
    for task_id in (ONE, TWO):
        await artifacts.put(task_id, "a", b"x")
    await artifacts.remove(ONE)
    await artifacts.remove(ONE)
    assert everything_in(folder) == [TWO, f"{TWO}/a"]


async def test_a_sweep_removes_what_nobody_knows_and_what_is_half_written(artifacts: Artifacts, folder: Path) -> None:
    assert await artifacts.sweep([]) == []
    for task_id in (ONE, TWO):
        await artifacts.put(task_id, "a", b"x")
        (folder / task_id / ".workspace.tar.zst.0123abcd").write_bytes(b"half")
    (folder / "notes").mkdir()
    assert await artifacts.sweep([TWO]) == [ONE]
    assert everything_in(folder) == ["notes", TWO, f"{TWO}/a"]


async def test_a_sweep_of_a_folder_that_hosts_share_leaves_what_may_be_anothers(folder: Path) -> None:
    artifacts = Artifacts(folder, is_shared=True)
    for task_id in (ONE, TWO):
        await artifacts.put(task_id, "a", b"x")
        (folder / task_id / ".workspace.tar.zst.0123abcd").write_bytes(b"half")
    assert await artifacts.sweep([TWO]) == []
    assert everything_in(folder) == sorted([ONE, f"{ONE}/.workspace.tar.zst.0123abcd", f"{ONE}/a", TWO, f"{TWO}/a"])


async def test_a_link_is_not_followed(artifacts: Artifacts, folder: Path) -> None:
    await artifacts.put(ONE, "a", b"x")
    (folder / ONE / "b").symlink_to("/etc/passwd")
    with pytest.raises(HostFault):
        await content(artifacts, "b")
