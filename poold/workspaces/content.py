"""The files of a version as one tar stream: from each of its packs what the listing says is there."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator

from poold.archives import archive as archives
from poold.archives.errors import BadArchive
from poold.archives.members import Census, parts_of
from poold.archives.tar import BLOCK, ZEROS, Member, Tar
from poold.errors import HostFault
from poold.lifetimes import finish
from poold.store.errors import NoObject
from poold.workspaces.errors import Damaged
from poold.workspaces.listing import Listing
from poold.workspaces.manifest import Manifest, Object
from poold.workspaces.places import Place
from poold.workspaces.shelf import Shelf, must_be

RECORD = 20 * BLOCK
TOP = b"workspace"


async def files(shelf: Shelf, place: Place, whole: Manifest, listing: Listing) -> AsyncGenerator[bytes, None]:
    """The stream; names begin with `workspace/`. What is damaged raises before its end."""
    for number, pack in enumerate(whole.packs):
        wanted = {path for path, item in listing.items() if item.pack == number}
        if wanted:
            async with contextlib.aclosing(_of_pack(shelf, place, pack, wanted)) as chunks:
                async for chunk in chunks:
                    yield chunk
    yield bytes(RECORD)


async def content(
    shelf: Shelf, place: Place, whole: Manifest, listing: Listing, path: str, *, most: int
) -> bytes | None:
    """What is in one file; None if it is none, or too large."""
    item = listing.get(path)
    if item is None or item.kind != "file" or item.size > most:
        return None
    wanted, found = item.hard or path, bytearray()
    async with contextlib.aclosing(_of_pack(shelf, place, whole.packs[item.pack], {wanted})) as chunks:
        async for chunk in chunks:
            found += chunk
            if len(found) > 2 * most + RECORD:
                return None
    return _data_of(bytes(found))


def _data_of(stream: bytes) -> bytes | None:
    """The data of the one file in a stream without an end."""
    found = bytearray()
    tar = Tar(lambda _: True, found.extend)
    tar.feed(stream + ZEROS * 2)
    return bytes(found)


async def _of_pack(shelf: Shelf, place: Place, pack: Object, wanted: set[str]) -> AsyncGenerator[bytes, None]:
    """Those members of a pack. Raises `Damaged` or `Corrupt` if it is not what was written, or has not all of them."""
    key, left, census = place.prefix + pack.key, set(wanted), Census()

    def is_wanted(member: Member) -> bool:
        census.judge(member)
        parts = parts_of(member)
        path = os.fsdecode(b"/".join(parts[1:]))
        if parts[:1] != [TOP] or path not in left:
            return False
        left.discard(path)
        return True

    tar, read = Tar(is_wanted, has_end=False), 0
    try:
        async with shelf.store.read(key) as reading:
            must_be(key, pack, reading.entry.sha256, reading.entry.bytes)
            async with contextlib.aclosing(archives.unpacked(reading.chunks)) as chunks:
                async for chunk in chunks:
                    read += len(chunk)
                    if read > shelf.limits.bytes + (1 << 30):
                        raise Damaged(key, f"it unpacks to more than {shelf.limits.bytes} bytes")
                    if kept := await finish(asyncio.to_thread(tar.feed, chunk)):
                        yield kept
        tar.end()
    except NoObject:
        raise Damaged(key, "it is missing") from None
    except (BadArchive, HostFault) as error:
        raise Damaged(key, error.message) from error
    if left:
        raise Damaged(key, f"{len(left)} of the files that its version names are not in it")
