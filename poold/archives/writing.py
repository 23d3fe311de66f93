"""Large files that are there as a whole or not at all: written piece by piece beside their place, and hashed."""

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from poold import files
from poold.archives.errors import translated
from poold.lifetimes import finish

PIECE = 1 << 18


class Writing:
    """A file that is being written. Its methods raise `StoreFull` or `HostFault`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        self._descriptor = -1
        self._hash = hashlib.sha256()
        self.bytes = 0
        self.is_published = False

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    async def write(self, data: bytes) -> None:
        await finish(asyncio.to_thread(self._write, data))

    async def publish(self) -> None:
        """Let it be what its place holds, also after a crash. Who is there already is replaced."""
        await finish(asyncio.to_thread(self._publish))

    async def withdraw(self) -> None:
        """Publish it no longer."""
        if self.is_published:
            await finish(asyncio.to_thread(self._path.unlink, missing_ok=True))

    def open(self) -> None:
        with translated("writing", self._path):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(self._beside, flags, files.PRIVATE)

    def close(self) -> None:
        """What was not published is gone."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            with translated("removing", self._beside):
                self._beside.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        with translated("writing", self._path):
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
        self._hash.update(data)
        self.bytes += len(data)

    def _publish(self) -> None:
        with translated("writing", self._path):
            os.fsync(self._descriptor)
            self._beside.rename(self._path)
            self.is_published = True
            files.sync(self._path.parent)


@contextlib.asynccontextmanager
async def open_writing(path: Path) -> AsyncIterator[Writing]:
    """A file to write during the block. What is not published by its end is gone."""
    writing = Writing(path)
    try:
        await finish(asyncio.to_thread(writing.open))
        yield writing
    finally:
        await finish(asyncio.to_thread(writing.close))


async def pieces_of(path: Path) -> AsyncIterator[bytes]:
    """A whole file, piece by piece."""
    descriptor = await finish(asyncio.to_thread(_open, path), undo=os.close)
    try:
        while data := await finish(asyncio.to_thread(os.read, descriptor, PIECE)):
            yield data
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    with translated("opening", path):
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
