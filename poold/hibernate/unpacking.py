"""Files out of the store: every part is checked, and the whole file again, before anybody may use it."""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from poold.errors import HostFault
from poold.hibernate import frames, packing
from poold.hibernate.blocking import in_thread
from poold.hibernate.errors import Damaged
from poold.hibernate.manifest import File, Part
from poold.hibernate.packing import Told
from poold.lifetimes import finish
from poold.store import Store


async def unpack(store: Store, prefix: str, file: File, path: Path, told: Told) -> None:
    """Make the file `path`, which is not there. Raises `Damaged` naming the part; then some of the file may be there.

    Parts are fetched ahead and written in order: of the file as a whole its hash is known, too.
    """
    with _new_file(path, file.bytes) as writing:
        async with aclosing(_ahead(store, prefix, file)) as parts:
            async for part, data in parts:
                await in_thread("writing", str(path), writing.add, prefix, part, data)
                told.add(part.bytes)
    if writing.whole.hexdigest() != file.sha256:
        raise Damaged(prefix + path.name, "its parts are whole, but they are not those of one file")


async def _ahead(store: Store, prefix: str, file: File) -> AsyncGenerator[tuple[Part, bytes], None]:
    """The parts in order, with the next ones on their way already."""
    coming: list[tuple[Part, asyncio.Task[bytes]]] = []
    waiting = iter(file.parts)
    try:
        while True:
            for part in islice(waiting, packing.AT_ONCE - len(coming)):
                coming.append((part, asyncio.create_task(packing.read_part(store, prefix, part))))
            if not coming:
                return
            first, data = coming.pop(0)
            yield first, await data
    finally:
        for _, task in coming:
            task.cancel()
        await finish(asyncio.gather(*(task for _, task in coming), return_exceptions=True))


@dataclass(eq=False)
class _Writing:
    """A file that is being made. Blocks."""

    fd: int
    size: int
    end: int = 0  # of the last range; none begins before
    whole: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def add(self, prefix: str, part: Part, data: bytes) -> None:
        at = 0
        for frame in part.frames:
            raw = frames.decompress(prefix + part.name, data[at : at + frame.bytes], frame)
            self.whole.update(raw)
            self.end = frames.put(prefix + part.name, raw, self.fd, self.size, self.end)
            at += frame.bytes


@contextmanager
def _new_file(path: Path, size: int) -> Iterator[_Writing]:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HostFault("making", str(path), hint=str(error)) from error
    try:
        os.ftruncate(fd, size)
        yield _Writing(fd, size)
    finally:
        os.close(fd)
