"""Sparse files as frames, each of which can be read by itself: a table of ranges, their bytes, compressed.

The same content gives the same frames, whatever holes the file system has made, so the hash of all of them names the
content. All of this blocks.
"""

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import zstandard

from poold.engines import sparse
from poold.hibernate.errors import Damaged
from poold.hibernate.manifest import Frame

BLOCK = 4096
CHUNK = 1 << 20  # what is read at once
INPUT = 4 << 20  # bytes of the file in one frame
LEVEL = 1
COUNT = struct.Struct("<I")
RANGE = struct.Struct("<QI")  # where it begins, and its bytes
ZEROS = bytes(CHUNK)

Range = tuple[int, bytes]


def raw_frames(path: Path) -> Iterator[bytes]:
    """The content of `path`: every block that is not zeros, in order, as many in each frame as belong there."""
    with path.open("rb", buffering=0) as file:
        waiting: list[Range] = []
        room = INPUT
        for offset, data in _ranges(file.fileno()):
            at = 0
            while at < len(data):
                piece = data[at : at + room]
                _append(waiting, offset + at, piece)
                at += len(piece)
                room -= len(piece)
                if room == 0:
                    yield _packed(waiting)
                    waiting, room = [], INPUT
        if waiting:
            yield _packed(waiting)


def _ranges(fd: int) -> Iterator[Range]:
    """What is not zeros, by blocks."""
    for start, end in sparse.data_ranges(fd, os.fstat(fd).st_size):
        for offset in range(start - start % BLOCK, end, CHUNK):
            data = os.pread(fd, min(CHUNK, end - offset), offset)
            if data == ZEROS[: len(data)]:
                continue
            yield from _without_zeros(offset, data)


def _without_zeros(offset: int, data: bytes) -> Iterator[Range]:
    begin: int | None = None
    for at in range(0, len(data), BLOCK):
        block = data[at : at + BLOCK]
        if block == ZEROS[: len(block)]:
            if begin is not None:
                yield offset + begin, data[begin:at]
            begin = None
        elif begin is None:
            begin = at
    if begin is not None:
        yield offset + begin, data[begin:]


def _append(waiting: list[Range], offset: int, data: bytes) -> None:
    """One range more, or a longer last one: how it was read must not show."""
    if waiting and waiting[-1][0] + len(waiting[-1][1]) == offset:
        begin, before = waiting.pop()
        waiting.append((begin, before + data))
    else:
        waiting.append((offset, data))


def _packed(ranges: list[Range]) -> bytes:
    table = b"".join(RANGE.pack(offset, len(data)) for offset, data in ranges)
    return b"".join([COUNT.pack(len(ranges)), table, *(data for _, data in ranges)])


def compress(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=LEVEL).compress(raw)


def decompress(part: str, data: bytes, frame: Frame) -> bytes:
    """The frame as it was. No more memory is used than the frame says, and that is bounded."""
    try:
        told = zstandard.get_frame_parameters(data)
        if told.content_size != frame.raw_bytes or told.window_size > max(frame.raw_bytes, 1 << 20):
            raise Damaged(part, f"a frame of {frame.raw_bytes} bytes says that it has {told.content_size}")
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=frame.raw_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Damaged(part, str(error)) from error
    if len(raw) != frame.raw_bytes:
        raise Damaged(part, f"a frame of {frame.raw_bytes} bytes has {len(raw)}")
    return raw


def put(part: str, raw: bytes, fd: int, size: int, after: int) -> int:
    """Write the ranges of a frame into a file of `size` bytes, all at `after` or behind. Returns where they end.

    Raises `Damaged`, and then nothing of it was written, if a range is not inside of the file.
    """
    ranges = unpacked(part, raw)
    end = after
    for offset, data in ranges:
        if offset < end or not data or offset + len(data) > size:
            raise Damaged(part, f"it has {len(data)} bytes for the place {offset} in a file of {size}")
        end = offset + len(data)
    for offset, data in ranges:
        _write(fd, data, offset)
    return end


def _write(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data = data[written:]
        offset += written


def unpacked(part: str, raw: bytes) -> list[tuple[int, memoryview]]:
    """The ranges of a frame. Where they belong is not looked at."""
    view = memoryview(raw)
    count = COUNT.unpack_from(raw)[0] if len(raw) >= COUNT.size else 0
    at = COUNT.size + count * RANGE.size
    if count == 0 or at > len(raw):
        raise Damaged(part, f"a frame of {len(raw)} bytes has a table of {count} ranges")
    ranges = []
    for offset, size in RANGE.iter_unpack(view[COUNT.size : at]):
        ranges.append((offset, view[at : at + size]))
        at += size
    if at != len(raw):
        raise Damaged(part, f"a frame of {len(raw)} bytes tells of {at}")
    return ranges


def content_hash(path: Path) -> str:
    """The name of the content of `path`."""
    found = hashlib.sha256()
    for raw in raw_frames(path):
        found.update(raw)
    return found.hexdigest()
