"""Which pages of its memory a machine has made its own: read, and put back, from outside of its process.

The memory is a private mapping of a sealed file. What the machine only read is still the file's; what it wrote to is
its own. The process may have been taken over by hostile code, so nothing that /proc says of it is used unchecked.
"""

import ctypes
import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from poold.engines import sparse
from poold.engines.qemu.pages import CHUNK, PAGE, ZEROS, Piece
from poold.errors import EngineError

# A line of /proc/PID/maps for a private mapping of a memory that `memory.load_sealed` made.
MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) rw-p ([0-9a-f]+) \S+ \d+ +/memfd:warren:", re.MULTILINE)
ENTRY = 8  # bytes of a page in /proc/PID/pagemap
PRESENT, SWAPPED, OF_A_FILE = 0x80, 0x40, 0x20  # bits of the last of them
IS_OWN = bytes(int(flags & SWAPPED != 0 or flags & (PRESENT | OF_A_FILE) == PRESENT) for flags in range(256))
OWN = re.compile(rb"\x01+")


def find_memory(pid: int, memory_bytes: int) -> int:
    """The address of the machine's memory in process `pid`. Raises `EngineError` if it is not there as a whole."""
    maps = Path(f"/proc/{pid}/maps").read_bytes()
    parts = [(int(start, 16), int(end, 16), int(offset, 16)) for start, end, offset in MAPPING.findall(maps)]
    # Advice to the kernel may have split the mapping; its parts still follow each other, here and in the file.
    address = parts[0][0] if parts else 0
    expected = 0
    for start, end, offset in parts:
        if (start - address, offset) != (expected, expected):
            break
        expected += end - start
    if not parts or expected != memory_bytes:
        raise EngineError("finding the memory of", f"process {pid}", hint=f"{expected} of {memory_bytes} bytes of it")
    return address


def own_runs(pid: int, address: int, memory_bytes: int) -> list[tuple[int, int]]:
    """The pages that the process has made its own, as (first page, count), ascending."""
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
        pagemap.seek(address // PAGE * ENTRY)
        left = memory_bytes // PAGE * ENTRY
        flags = bytearray()
        while left:
            entries = pagemap.read(min(left, 1 << 20))
            if not entries:
                raise EngineError("reading the page map of", f"process {pid}", hint="the process is gone")
            flags += entries[ENTRY - 1 :: ENTRY].translate(IS_OWN)
            left -= len(entries)
    return [(run.start(), run.end() - run.start()) for run in OWN.finditer(flags)]


class _Range(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("address", ctypes.c_void_p), ("count", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_writev.restype = ctypes.c_ssize_t
_libc.process_vm_writev.argtypes = (
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong),
)


class ProcessMemory:
    """The memory of a process from `address` on. Open as a block."""

    def __init__(self, pid: int, address: int) -> None:
        self._pid = pid
        self._address = address
        self._subject = f"process {pid}"
        self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> "ProcessMemory":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, offset: int, count: int) -> bytes:
        data = os.pread(self._fd, count, self._address + offset)
        if len(data) != count:
            raise EngineError("reading the memory of", self._subject, hint=f"{len(data)} of {count} bytes came")
        return data

    def write(self, pieces: Sequence[Piece], data: memoryview) -> None:
        """Put `data`, which can be written to, into `pieces` one after the other; at most a chunk of it.

        Not through the file: that goes page by page and copies each of them twice.
        """
        # The number is that of our process: the file knows whether it is there, and others get all other numbers first.
        self.read(pieces[0][0], 1)
        here = _Range(ctypes.addressof(ctypes.c_char.from_buffer(data)), len(data))
        there = (_Range * len(pieces))(*(_Range(self._address + offset, count) for offset, count in pieces))
        args = ctypes.byref(here), 1, ctypes.byref(there), len(pieces), 0
        written = _libc.process_vm_writev(self._pid, *args)
        if written != len(data):
            hint = os.strerror(ctypes.get_errno()) if written < 0 else f"{written} of {len(data)} bytes went"
            raise EngineError("writing to the memory of", self._subject, hint=hint)


class GoldenMemory:
    """The memory that a machine began with, in its sparse file. Open as a block. Its holes are not read."""

    def __init__(self, path: Path, memory_bytes: int) -> None:
        self._subject = str(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._ranges = sparse.data_ranges(self._fd, memory_bytes)
        self._starts = [start for start, _ in self._ranges]

    def __enter__(self) -> "GoldenMemory":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, offset: int, count: int) -> bytes:
        """At most a chunk of it."""
        # The last range that starts before our end is the only one that may reach into us.
        last = bisect_right(self._starts, offset + count - 1) - 1
        if last < 0 or self._ranges[last][1] <= offset:
            return ZEROS if count == CHUNK else ZEROS[:count]
        data = os.pread(self._fd, count, offset)
        if len(data) != count:
            raise EngineError("reading", self._subject, hint="it is shorter than the memory of its machine")
        return data
