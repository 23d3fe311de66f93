"""The memory that all machines of a shape start from can be read by all and changed by nobody."""

import mmap
import os
from pathlib import Path

import pytest

from poold.engines import sparse
from poold.engines.qemu import golden, memory
from poold.engines.qemu.tsc import measure_khz


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A sparse file: a page of data, a large hole, a page of data."""
    path = tmp_path / "memory"
    with path.open("wb") as out:
        out.write(b"a" * 4096)
        out.seek(64 << 20)
        out.write(b"z" * 4096)
    return path


def test_a_copy_is_equal_and_as_sparse(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    sparse.clone(file, copy, mode=0o600, uid=os.getuid())
    assert copy.read_bytes() == file.read_bytes()
    assert copy.stat().st_blocks * 512 < 1 << 20


def test_a_copy_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sparse.clone(tmp_path / "missing", tmp_path / "copy", mode=0o600, uid=os.getuid())
    assert not (tmp_path / "copy").exists()


def test_sealed_memory_opens_for_writing_and_cannot_be_written(file: Path) -> None:
    fd = memory.load_sealed(file)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)  # what QEMU does
    try:
        with pytest.raises(PermissionError):
            os.pwrite(again, b"evil", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(again, 0)
        with pytest.raises(PermissionError):
            mmap.mmap(again, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with mmap.mmap(again, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as private:
            private[:4] = b"mine"
        assert os.pread(fd, 4, 0) == b"aaaa"
    finally:
        os.close(again)
        os.close(fd)


async def test_a_memory_is_loaded_once_and_the_least_used_is_let_go(file: Path, tmp_path: Path) -> None:
    held = memory.Memories()
    paths = [file, *(tmp_path / str(number) for number in range(memory.MOST))]
    for path in paths[1:]:
        path.write_bytes(b"x")
    fds = [await held.open(path) for path in paths]
    same = await held.open(paths[-1])
    assert os.fstat(same).st_ino == os.fstat(fds[-1]).st_ino
    anew = await held.open(paths[0])
    assert os.fstat(anew).st_ino != os.fstat(fds[0]).st_ino
    assert os.pread(fds[0], 1, 0) == b"a"  # ours stays open
    held.close()
    for fd in (*fds, same, anew):
        os.close(fd)


def test_only_the_snapshots_wanted_last_are_kept(tmp_path: Path) -> None:
    for number in range(golden.MOST_SNAPSHOTS + 3):
        folder = tmp_path / f"{number:02}"
        folder.mkdir()
        os.utime(folder, (number, number))
    golden.used(tmp_path / "00")
    golden._prune(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == golden.MOST_SNAPSHOTS
    assert "00" in left
    assert "01" not in left


def test_the_counter_runs_at_a_plausible_rate() -> None:
    first, second = measure_khz(), measure_khz()
    assert 500_000 < first < 8_000_000
    assert abs(first - second) / first < 0.01
