"""A workspace is kept as a whole or not at all, and what is kept can be unpacked by anybody."""

import asyncio
import hashlib
import os
import stat
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from poold import files
from poold.archives import archive
from poold.archives.archive import Archive, keep
from poold.archives.errors import ArchiveTooLarge, BadArchive, StoreFull
from poold.errors import HostFault
from tests.unit.archives.archives_tars import MIB, chunks, listed, made, member, packed, unpacked, workspace

LIMIT_S = 60.0
ENOUGH = 1 << 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return workspace(tmp_path / "workspace")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "workspace.tar.zst"


def children() -> set[str]:
    """Our own processes; other tests may have left some."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture(autouse=True)
def nothing_is_left(path: Path) -> Iterator[None]:
    """No compressor, and no half of a file."""
    before = children()
    yield
    assert children() <= before
    assert {each.name for each in path.parent.glob("*")} | {path.name} == {path.name}


def half_random(megabytes: int) -> bytes:
    return made(*((member(f"f{i}"), os.urandom(MIB)) for i in range(megabytes)))


async def test_what_was_in_the_workspace_comes_out_of_the_archive(folder: Path, path: Path, tmp_path: Path) -> None:
    kept = await keep(chunks(packed(folder)), path, limit_bytes=ENOUGH)
    data = path.read_bytes()
    assert kept == Archive(len(data), hashlib.sha256(data).hexdigest(), 12, 64 * MIB + 1008, 2, 0)
    assert listed(unpacked(path, tmp_path / "out")) == listed(folder)
    assert path.stat().st_mode & 0o777 == 0o600
    sparse = next((tmp_path / "out").glob("sparse-*"))
    assert sparse.stat().st_blocks * 512 < MIB


async def test_it_is_kept_in_whatever_pieces_it_comes(folder: Path, path: Path, tmp_path: Path) -> None:
    stream = half_random(4)
    for step in (7001, len(stream)):
        kept = await keep(chunks(stream, step), path, limit_bytes=ENOUGH)
        assert kept.files == 4
    assert {name: data[1] for name, data in listed(unpacked(path, tmp_path / "out")).items()}.keys() == {  # type: ignore[index]
        *("f0", "f1", "f2", "f3")
    }


async def test_one_that_is_there_is_replaced_by_the_whole_of_another(path: Path) -> None:
    first = await keep(chunks(made(member("a"))), path, limit_bytes=ENOUGH)
    with pytest.raises(BadArchive):
        await keep(chunks(made(member("../a"))), path, limit_bytes=ENOUGH)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == first.sha256
    second = await keep(chunks(made(member("b"))), path, limit_bytes=ENOUGH)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == second.sha256 != first.sha256


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (b"", "ends in the middle"),
        (half_random(3)[:-20_000], "ends in the middle"),
        (half_random(3)[: 3 * (512 + MIB)] + b"x" * 512, "no header of tar"),
        (made((member("a"), os.urandom(MIB)), member("/etc/passwd")), "leads out"),
        (made((member("a"), os.urandom(MIB)), member("b", tarfile.LNKTYPE, "../c")), "leads out"),
    ],
)
async def test_of_what_is_no_good_archive_nothing_remains(path: Path, stream: bytes, said: str) -> None:
    with pytest.raises(BadArchive, match=said):
        await keep(chunks(stream), path, limit_bytes=ENOUGH)
    assert not path.exists()


async def test_one_that_is_too_large_is_told_with_the_limit(path: Path) -> None:
    stream = half_random(3)
    with pytest.raises(ArchiveTooLarge, match=str(2 * MIB)) as caught:
        await keep(chunks(stream), path, limit_bytes=2 * MIB)
    assert (caught.value.status, caught.value.details["limit_bytes"]) == (413, 2 * MIB)
    assert not path.exists()
    assert (await keep(chunks(stream), path, limit_bytes=len(stream))).files == 3


async def test_who_talks_on_behind_the_end_is_not_listened_to(path: Path) -> None:
    said = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal said
        yield made(member("a"))
        while True:
            said += 1
            yield b"garbage " * 1000

    async with asyncio.timeout(LIMIT_S):
        assert (await keep(endless(), path, limit_bytes=ENOUGH)).files == 1
    assert said < 20


async def test_a_stream_that_breaks_off_leaves_nothing_and_says_so_itself(path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield half_random(2)[: MIB + 5]
        raise ConnectionResetError("the guest hung up")

    with pytest.raises(ConnectionResetError):
        await keep(broken(), path, limit_bytes=ENOUGH)
    assert not path.exists()


def fails_to_write(monkeypatch: pytest.MonkeyPatch, error: OSError, after: int) -> None:
    """The disk, from some write on; pipes are not on it."""
    real, written = os.write, 0

    def write(descriptor: int, data: bytes) -> int:
        nonlocal written
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            written += 1
            if written > after:
                raise error
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)


async def test_a_full_disk_is_told_as_such(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_to_write(monkeypatch, OSError(28, "No space left on device"), after=2)
    with pytest.raises(StoreFull, match="is full") as caught:
        await keep(chunks(half_random(8)), path, limit_bytes=ENOUGH)
    assert caught.value.status == 503
    assert not path.exists()


@pytest.mark.parametrize("step", ["fsync", "rename"])
async def test_a_disk_that_fails_at_the_end_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(*((os, "fsync", fail) if step == "fsync" else (Path, "rename", fail)))
    with pytest.raises(HostFault, match="Input/output error"):
        await keep(chunks(made(member("a"))), path, limit_bytes=ENOUGH)
    assert not path.exists()


async def test_a_name_that_may_not_be_on_disk_is_taken_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        assert path.exists()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "sync", fail)
    with pytest.raises(HostFault, match="Input/output error"):
        await keep(chunks(made(member("a"))), path, limit_bytes=ENOUGH)
    assert not path.exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("no-such-program",), "install the package zstd"),
        (("sh", "-c", "echo broken >&2; exit 3"), "broken"),
        (("sh", "-c", "head -c 100000 >/dev/null; echo broken >&2; exit 3"), "broken"),
        (("sh", "-c", "cat >/dev/null; echo broken >&2; exit 3"), "broken"),
        (("sh", "-c", "echo broken >&2; kill -9 $$"), "broken"),
    ],
)
async def test_a_compressor_that_fails_is_told_in_its_own_words(
    path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(archive, "ZSTD", argv)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(HostFault, match=said):
            await keep(chunks(half_random(8)), path, limit_bytes=ENOUGH)
    assert not path.exists()


@pytest.mark.parametrize("after", range(0, 40, 3))
async def test_a_cancellation_at_any_moment_leaves_nothing(path: Path, after: int) -> None:
    """Which moment it is depends on the machine; that nothing remains does not."""
    reached = asyncio.Event()

    async def counted() -> AsyncIterator[bytes]:
        number = 0
        async for chunk in chunks(half_random(2), 1 << 16):
            number += 1
            if number == after:
                reached.set()
            yield chunk
        reached.set()

    task = asyncio.create_task(keep(counted(), path, limit_bytes=ENOUGH))
    if after:
        await reached.wait()
    for _ in range(after % 5):
        await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.wait({task})
    assert task.cancelled() or task.exception() is None
    assert path.exists() == (not task.cancelled())


async def test_a_compressor_that_takes_nothing_is_ended_with_a_cancellation(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "ZSTD", ("sleep", "1000"))
    before = children()
    task = asyncio.create_task(keep(chunks(half_random(2)), path, limit_bytes=ENOUGH))
    async with asyncio.timeout(LIMIT_S):
        while children() <= before:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled()


async def test_a_compressor_whose_output_nobody_takes_is_ended_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has more to say than a pipe holds when the disk fails."""
    monkeypatch.setattr(archive, "ZSTD", ("cat",))
    fails_to_write(monkeypatch, OSError(5, "Input/output error"), after=0)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(HostFault, match="Input/output"):
            await keep(chunks(half_random(8), MIB), path, limit_bytes=ENOUGH)
