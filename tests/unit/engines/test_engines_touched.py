"""Which pages a process has made its own is read from outside of it."""

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from poold.engines.qemu import memory, touched
from poold.engines.qemu.pages import PAGE
from poold.errors import EngineError

PAGES = 64
SIZE = PAGES * PAGE

# Maps the memory privately, reads a page, writes to others, and stays.
CHILD = f"""
import mmap, sys
with mmap.mmap(int(sys.argv[1]), {SIZE}, flags=mmap.MAP_PRIVATE) as memory:
    memory[5 * {PAGE}]
    for page in (2, 3, 9, {PAGES - 1}):
        memory[page * {PAGE}] = 7
    print("there", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def pid(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "golden" / "memory"
    path.parent.mkdir()
    path.write_bytes(b"g" * SIZE)
    fd = memory.load_sealed(path)
    argv = [sys.executable, "-c", CHILD, str(fd)]
    with subprocess.Popen(argv, pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        os.close(fd)
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        yield child.pid
        child.communicate()


def test_pages_that_were_written_to_are_its_own_and_those_it_read_are_not(pid: int) -> None:
    address = touched.find_memory(pid, SIZE)
    assert touched.own_runs(pid, address, SIZE) == [(2, 2), (9, 1), (PAGES - 1, 1)]
    with touched.ProcessMemory(pid, address) as own:
        assert own.read(3 * PAGE, PAGE) == b"\7" + b"g" * (PAGE - 1)


def test_what_is_written_goes_to_its_pieces_in_their_order_and_makes_them_the_process_s_own(pid: int) -> None:
    address = touched.find_memory(pid, SIZE)
    with touched.ProcessMemory(pid, address) as own:
        own.write([(20 * PAGE, PAGE), (40 * PAGE, 2 * PAGE)], memoryview(bytearray(b"abc" * PAGE)))
        content = (b"abc" * PAGE)[:PAGE], (b"abc" * PAGE)[PAGE:]
        assert (own.read(20 * PAGE, PAGE), own.read(40 * PAGE, 2 * PAGE)) == content
        assert own.read(21 * PAGE, PAGE) == b"g" * PAGE
    assert touched.own_runs(pid, address, SIZE) == [(2, 2), (9, 1), (20, 1), (40, 2), (PAGES - 1, 1)]


def test_what_does_not_fit_into_the_memory_is_an_error(pid: int) -> None:
    with touched.ProcessMemory(pid, touched.find_memory(pid, SIZE)) as own, pytest.raises(EngineError, match="writing"):
        own.write([(0, PAGE), (1 << 45, PAGE)], memoryview(bytearray(2 * PAGE)))


def test_a_process_that_has_ended_is_not_written_to(pid: int) -> None:
    with touched.ProcessMemory(pid, touched.find_memory(pid, SIZE)) as own:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(EngineError, match="memory of"):
            own.write([(0, PAGE)], memoryview(bytearray(PAGE)))


@pytest.mark.parametrize("size", [SIZE - PAGE, SIZE + PAGE])
def test_a_memory_of_another_size_is_not_found(pid: int, size: int) -> None:
    with pytest.raises(EngineError, match=f"of {size} bytes"):
        touched.find_memory(pid, size)


def test_a_process_without_a_machine_has_no_memory_of_one() -> None:
    with mmap.mmap(-1, SIZE), pytest.raises(EngineError, match="0 of"):
        touched.find_memory(os.getpid(), SIZE)
