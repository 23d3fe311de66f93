"""The pages that a machine made its own, in one file: a head, the pages' bytes, and a table of where they belong.

Only what differs from the golden memory is in it, so its size is what the machine changed and not what it has. A page
of zeros is a line of the table and no bytes. No machine runs with a file of which not every byte was checked: a wrong
page would be a machine that goes wrong hours later.
"""

import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from poold.errors import EngineError

PAGE = 4096
MAGIC = b"WRNPAGE1"
# Magic, bytes of the whole memory, bytes of pages, runs, checksum of the pages, checksum of the table.
HEAD = struct.Struct("<8sQQQII")
RUN = struct.Struct("<QII")  # the first page, how many, and whether they are zeros
DATA_AT = PAGE  # so that pages are aligned in the file too
CHUNK = 256 * PAGE  # what is read, compared and written at once

ZERO_PAGE = bytes(PAGE)
ZEROS = bytes(CHUNK)
SAME, DATA, ZERO = 0, 1, 2
STRETCHES = re.compile(rb"\x01+|\x02+")

Run = tuple[int, int, int]  # as in the table
Read = Callable[[int, int], bytes]  # (offset in the memory, count)
Piece = tuple[int, int]  # the same: at most one chunk of the memory
Write = Callable[[Sequence[Piece], memoryview], None]  # pieces, and their bytes one after the other
Progress = Callable[[int, int], None]


class Writer:
    """Writes a file of pages into `fd`, which is empty. Blocks."""

    def __init__(self, fd: int, memory_bytes: int) -> None:
        self._fd = fd
        self._memory_bytes = memory_bytes
        self._runs: list[Run] = []
        self._bytes = 0
        self._checksum = 0
        os.lseek(fd, DATA_AT, os.SEEK_SET)

    def add(self, first_page: int, mine: bytes, golden: bytes) -> None:
        """Keep those of the pages `mine`, from `first_page` on, that are not as in `golden`. Later pages come later."""
        offsets = range(0, len(mine), PAGE)
        kinds = bytes(_kind(mine[at : at + PAGE], golden[at : at + PAGE]) for at in offsets)
        view = memoryview(mine)
        for stretch in STRETCHES.finditer(kinds):
            start, end = stretch.span()
            is_zero = kinds[start] == ZERO
            self._note(first_page + start, end - start, is_zero)
            if not is_zero:
                self._write(view[start * PAGE : end * PAGE])

    def finish(self) -> int:
        """Write the table and, last, the head. Returns the size of the file."""
        table = b"".join(RUN.pack(*run) for run in self._runs)
        _write_all(self._fd, memoryview(table))
        sums = self._checksum, zlib.crc32(table)
        head = HEAD.pack(MAGIC, self._memory_bytes, self._bytes, len(self._runs), *sums)
        os.pwrite(self._fd, head.ljust(DATA_AT, b"\0"), 0)
        return DATA_AT + self._bytes + len(table)

    def _note(self, first: int, count: int, is_zero: bool) -> None:
        """One run more, or a longer last one."""
        if self._runs:
            last, pages, kind = self._runs[-1]
            if last + pages == first and kind == is_zero:
                self._runs[-1] = (last, pages + count, kind)
                return
        self._runs.append((first, count, int(is_zero)))

    def _write(self, data: memoryview) -> None:
        _write_all(self._fd, data)
        self._checksum = zlib.crc32(data, self._checksum)
        self._bytes += len(data)


def _kind(mine: bytes, golden: bytes) -> int:
    if mine == golden:
        return SAME
    return ZERO if mine == ZERO_PAGE else DATA


def write(writer: Writer, runs: Iterable[tuple[int, int]], own: Read, golden: Read, at: Progress) -> int:
    """Write the pages of `runs` (first page, count; ascending), as far as `own` differs from `golden`.

    Returns the size of the file. `at` is told how many of how many bytes were looked at. Blocks.
    """
    pieces = [piece for run in runs for piece in _pieces(*run)]
    total = sum(count for _, count in pieces)
    done = 0
    for offset, count in pieces:
        writer.add(offset // PAGE, own(offset, count), golden(offset, count))
        done += count
        at(done, total)
    return writer.finish()


def _pieces(first_page: int, pages: int) -> Iterator[Piece]:
    """A run in pieces."""
    for offset in range(first_page * PAGE, (first_page + pages) * PAGE, CHUNK):
        yield offset, min(CHUNK, (first_page + pages) * PAGE - offset)


def _batched(runs: Iterable[tuple[int, int]]) -> Iterator[list[Piece]]:
    """Pieces that are one chunk together: most runs are short, and each call costs."""
    batch: list[Piece] = []
    room = CHUNK
    for first, count in runs:
        offset, end = first * PAGE, (first + count) * PAGE
        while offset < end:
            size = min(room, end - offset)
            batch.append((offset, size))
            offset += size
            room -= size
            if room == 0:
                yield batch
                batch, room = [], CHUNK
    if batch:
        yield batch


@dataclass(frozen=True)
class Batch:
    """Pieces of the memory, and where their bytes begin among those of the file. None: they are zeros."""

    pieces: list[Piece]
    at: int | None


@dataclass(frozen=True)
class Pages:
    """A file of pages whose head and table make sense. Whether its bytes do, `check` finds out."""

    path: Path
    fd: int
    checksum: int
    runs: list[Run]

    @property
    def size(self) -> int:
        return sum(count for _, count, is_zero in self.runs if not is_zero) * PAGE

    def check(self, at: Progress) -> None:
        """Raise `EngineError` if a byte of the pages is not what was saved. `at` is told how far it is. Blocks."""
        checksum, total = 0, self.size
        for offset in range(0, total, CHUNK):
            checksum = zlib.crc32(self._read(offset, min(CHUNK, total - offset)), checksum)
            at(offset, total)
        if checksum != self.checksum:
            raise _broken(self.path, "the checksum of its pages is wrong")

    def batches(self) -> Iterator[Batch]:
        """All of the pages, in batches of at most one chunk."""
        taken = 0
        for pieces in _batched((first, count) for first, count, is_zero in self.runs if not is_zero):
            yield Batch(pieces, taken)
            taken += sum(size for _, size in pieces)
        for pieces in _batched((first, count) for first, count, is_zero in self.runs if is_zero):
            yield Batch(pieces, None)

    def put(self, batches: Iterable[Batch], write: Write, at: Progress) -> None:
        """Write `batches` where they belong: all of them, or the caller's share. Blocks.

        That memory must not be used before `check` has returned. `at` is told how far it is.
        """
        content, blank = memoryview(bytearray(CHUNK)), memoryview(bytearray(CHUNK))
        for batch in batches:
            size = sum(size for _, size in batch.pieces)
            if batch.at is None:
                write(batch.pieces, blank[:size])
                continue
            if os.preadv(self.fd, [content[:size]], DATA_AT + batch.at) != size:
                raise _shrunk(self.path)
            write(batch.pieces, content[:size])
            at(batch.at, self.size)

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self.fd, size, DATA_AT + offset)
        if len(data) != size:
            raise _shrunk(self.path)
        return data


@contextmanager
def open_pages(path: Path, memory_bytes: int) -> Iterator[Pages]:
    """The pages in the file `path` during the block, for a memory of this size. Blocks.

    Raises `EngineError` if the file was cut, is no such file, or is one of another memory.
    """
    with path.open("rb", buffering=0) as file:
        yield _parse(path, file.fileno(), memory_bytes)


def _parse(path: Path, fd: int, memory_bytes: int) -> Pages:
    whole = os.fstat(fd).st_size
    if whole < DATA_AT:
        raise _broken(path, f"it has {whole} bytes and no room for its head")
    magic, memory, size, count, data_sum, table_sum = HEAD.unpack(os.pread(fd, HEAD.size, 0))
    if magic != MAGIC:
        raise _broken(path, "it does not begin as a file of pages")
    if memory != memory_bytes:
        raise _broken(path, f"it is of a memory of {memory} bytes, not {memory_bytes}")
    if whole != DATA_AT + size + count * RUN.size:
        raise _broken(path, f"it has {whole} bytes, not those that its head tells of")
    table = os.pread(fd, count * RUN.size, DATA_AT + size)
    if zlib.crc32(table) != table_sum:
        raise _broken(path, "the checksum of its table is wrong")
    runs: list[Run] = list(RUN.iter_unpack(table))
    _check_runs(path, runs, memory_bytes, size)
    return Pages(path, fd, data_sum, runs)


def _check_runs(path: Path, runs: list[Run], memory_bytes: int, size: int) -> None:
    """Ascending, apart, inside of the memory, and with as many bytes as there are."""
    end = with_bytes = 0
    for first, count, is_zero in runs:
        if first < end or count == 0 or is_zero not in (0, 1) or (first + count) * PAGE > memory_bytes:
            raise _broken(path, f"its table has a run of {count} pages at {first}")
        end = first + count
        with_bytes += 0 if is_zero else count * PAGE
    if with_bytes != size:
        raise _broken(path, f"its table tells of {with_bytes} bytes of pages and it has {size}")


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _broken(path: Path, what: str) -> EngineError:
    return EngineError("reading", str(path), hint=f"{what}: the saved machine is damaged")


def _shrunk(path: Path) -> EngineError:
    return _broken(path, "it became shorter while it was read")
