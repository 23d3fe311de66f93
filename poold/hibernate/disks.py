"""The disk of a hibernated machine as one stream, for a person: as much of it as can be read."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import zstandard

from poold.hibernate import frames, packing
from poold.hibernate.errors import Damaged
from poold.hibernate.manifest import File, Part
from poold.lifetimes import finish
from poold.store import Store

ZEROS = bytes(1 << 20)


async def damaged_parts(store: Store, prefix: str, file: File) -> list[str]:
    """The parts that are missing or not what was written, by name."""
    found: list[str] = []

    async def look(part: Part) -> None:
        try:
            _check(prefix, part, await packing.read_part(store, prefix, part), file)
        except Damaged:
            found.append(part.name)

    await packing.each(file.parts, look)
    return sorted(found)


def _check(prefix: str, part: Part, data: bytes, file: File) -> None:
    """Raise `Damaged` unless every range of the part is inside of the file and behind the one before."""
    end = 0
    for offset, piece in _ranges(prefix, part, data):
        if offset < end or offset + len(piece) > file.bytes:
            raise Damaged(prefix + part.name, f"it has {len(piece)} bytes for the place {offset}")
        end = offset + len(piece)


def _ranges(prefix: str, part: Part, data: bytes) -> Iterator[tuple[int, memoryview]]:
    at = 0
    for frame in part.frames:
        raw = frames.decompress(prefix + part.name, data[at : at + frame.bytes], frame)
        yield from frames.unpacked(prefix + part.name, raw)
        at += frame.bytes


async def stream(store: Store, prefix: str, file: File, without: list[str]) -> AsyncIterator[bytes]:
    """The file in zstd. Where parts are missing, those of `without`, it is zeros. Raises `Damaged` for any other."""
    packer = zstandard.ZstdCompressor(level=frames.LEVEL).compressobj()
    at = 0
    for part in file.parts:
        if part.name not in without:
            data = await packing.read_part(store, prefix, part)
            packed, at = await finish(asyncio.to_thread(_packed, packer, list(_ranges(prefix, part, data)), at))
            if packed:
                yield packed
    while at < file.bytes:
        count = min(len(ZEROS), file.bytes - at)
        packed = await finish(asyncio.to_thread(packer.compress, ZEROS[:count]))
        at += count
        if packed:
            yield packed
    yield packer.flush()


def _packed(packer: "zstandard.ZstdCompressionObj", ranges: list[tuple[int, memoryview]], at: int) -> tuple[bytes, int]:
    """The ranges, with zeros before each from `at` on, compressed; and where they end. Blocks."""
    packed = []
    for offset, data in ranges:
        if offset < at:
            raise Damaged("the drive", f"two of its parts are for the place {offset}")
        while at < offset:
            count = min(len(ZEROS), offset - at)
            packed.append(packer.compress(ZEROS[:count]))
            at += count
        packed.append(packer.compress(data))
        at += len(data)
    return b"".join(packed), at
