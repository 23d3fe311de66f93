"""The files that tasks leave behind: `TASK/NAME` in one folder, each whole or not there at all.

Which of them there are, and since when, is in the ledger. A file that no row names is left over.
"""

import asyncio
import contextlib
import os
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from contract.errors import shown
from poold.archives.errors import translated
from poold.archives.writing import open_writing
from poold.lifetimes import finish
from poold.store import Content, Store
from poold.store.errors import NoObject
from poold.tasks.errors import ArtifactTooLarge, BadRange, NoArtifact
from poold.tasks.vault import TASK

NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,128}")
PIECE = 1 << 18
PREFIX = "artifacts/"
Read = Callable[[int, int], AsyncIterator[bytes]]
_RANGE = re.compile(r"\s*bytes\s*=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Stored:
    name: str
    bytes: int
    sha256: str


class Part:
    """A file, or what was asked for of it. One that is here can be read to its end, also when it is removed meanwhile.

    `read(first, behind)` gives the bytes from `first` up to `behind`.
    """

    def __init__(self, read: Read, total: int, wanted: tuple[int, int] | None) -> None:
        self._read = read
        self.total = total  # bytes of the whole file
        self.is_whole = wanted is None
        self.first, self.length = (0, total) if wanted is None else wanted

    @property
    def content_range(self) -> str:
        """What a reply of 206 says of itself."""
        return f"bytes {self.first}-{self.first + self.length - 1}/{self.total}"

    def chunks(self) -> AsyncIterator[bytes]:
        return self._read(self.first, self.first + self.length)


class Artifacts:
    """The files of all tasks of this host. Raises `StoreFull` or `HostFault` if the disk does not do its part.

    With a store each is there, too, before the ledger knows of it: whoever takes this host over has it from there.
    """

    def __init__(self, folder: Path, *, is_shared: bool = False, store: Store | None = None) -> None:
        self._folder = folder
        self._is_shared = is_shared
        self._store = store

    def path(self, task_id: str, name: str) -> Path:
        """Where it is, or would be. Raises `NoArtifact` for what cannot be one."""
        if not TASK.fullmatch(task_id) or not NAME.fullmatch(name):
            raise NoArtifact(f"no artifact {shown(name)}", name=shown(name))
        return self._folder / task_id / name

    def spool(self, task_id: str) -> Path:
        """A place for what is only passing through. What is left there is removed at the next start. Blocks."""
        folder = self.path(task_id, "all").parent
        with translated("writing", folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / f".spool-{secrets.token_hex(8)}"

    async def put(
        self, task_id: str, name: str, data: bytes | AsyncIterator[bytes], *, limit_bytes: int = 1 << 30
    ) -> Stored:
        """Let the task have this file. If this raises, it has what it had before; if cancelled, that or all of this."""
        async with open_writing(self.path(task_id, name)) as writing:
            async for piece in _pieces(data):
                if writing.bytes + len(piece) > limit_bytes:
                    raise ArtifactTooLarge(f"{name} has more than {limit_bytes} bytes", limit_bytes=limit_bytes)
                await writing.write(piece)
            await writing.publish()
        stored = Stored(name, writing.bytes, writing.sha256)
        await self.share(task_id, stored)
        return stored

    async def share(self, task_id: str, stored: Stored) -> None:
        """Let the store have a file that is here. It may be called again."""
        if self._store is None:
            return
        path = self.path(task_id, stored.name)

        async def chunks() -> AsyncIterator[bytes]:
            async with self._open_here(path) as part:
                async for piece in part.chunks():
                    yield piece

        await self._store.write(_key(task_id, stored.name), Content(chunks, stored.bytes, stored.sha256))

    @contextlib.asynccontextmanager
    async def open_part(self, task_id: str, name: str, asked: str | None = None) -> AsyncIterator[Part]:
        """The file, or the part that a Range header asks for. Raises `NoArtifact` or `BadRange`."""
        path = self.path(task_id, name)
        if self._store is None or await asyncio.to_thread(path.exists):
            async with self._open_here(path, asked) as part:
                yield part
        else:
            yield await self._part_there(self._store, _key(task_id, name), asked)

    @contextlib.asynccontextmanager
    async def _open_here(self, path: Path, asked: str | None = None) -> AsyncIterator[Part]:
        descriptor = await finish(asyncio.to_thread(_open, path), undo=os.close)

        async def read(at: int, end: int) -> AsyncIterator[bytes]:
            while at < end:
                data = await finish(asyncio.to_thread(os.pread, descriptor, min(PIECE, end - at), at))
                if not data:
                    return  # shorter than it was; a reader that counts notices
                at += len(data)
                yield data

        try:
            total = os.fstat(descriptor).st_size
            yield Part(read, total, part_of(total, asked))
        finally:
            os.close(descriptor)

    async def _part_there(self, store: Store, key: str, asked: str | None) -> Part:
        """Of a task that came from a host that is lost."""
        try:
            total = (await store.head(key)).bytes
        except NoObject:
            task_id, _, name = key.removeprefix(PREFIX).partition("/")
            raise _no_artifact(task_id, name) from None

        async def read(first: int, end: int) -> AsyncIterator[bytes]:
            async with store.read(key, start=first, end=end) as reading:
                async for piece in reading.chunks:
                    yield piece

        return Part(read, total, part_of(total, asked))

    async def remove(self, task_id: str) -> None:
        """Remove every file of the task. Succeeds if there is none."""
        await finish(asyncio.to_thread(self._remove, self.path(task_id, "all").parent))
        if self._store is not None:
            for key in [entry.key async for entry in self._store.list(_key(task_id, ""))]:
                await self._store.delete(key)

    async def sweep(self, known: Collection[str]) -> list[str]:
        """Remove what is of no task in `known`, and what was half written. While nothing is written: at the start.

        In a folder that other hosts share a task that is not known may be theirs, and stays.
        """
        return await finish(asyncio.to_thread(self._sweep, frozenset(known)))

    def _remove(self, folder: Path) -> None:
        with translated("removing", folder), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)

    def _sweep(self, known: frozenset[str]) -> list[str]:
        try:
            folders = [path for path in self._folder.iterdir() if TASK.fullmatch(path.name)]
        except FileNotFoundError:
            return []
        if self._is_shared:
            folders = [path for path in folders if path.name in known]
        left = sorted(path.name for path in folders if path.name not in known)
        for folder in folders:
            if folder.name not in known:
                self._remove(folder)
            for half in folder.glob(".*"):
                half.unlink(missing_ok=True)
        return left


def part_of(total: int, asked: str | None) -> tuple[int, int] | None:
    """The first byte and the length of what a Range header asks for; None: everything, as of what is not understood."""
    match = _RANGE.fullmatch(asked or "")
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        length = min(int(match[2]), total)
        first = total - length
    else:
        first = int(match[1])
        last = int(match[2]) if match[2] else total - 1
        if match[2] and last < first:
            return None
        length = min(last, total - 1) - first + 1
    if length <= 0:
        raise BadRange(f"there is nothing at {shown(asked)} of {total} bytes", bytes=total)
    return first, length


async def _pieces(data: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if isinstance(data, bytes):
        yield data
        return
    async for piece in data:
        yield piece


def _open(path: Path) -> int:
    with translated("opening", path):
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _no_artifact(path.parent.name, path.name) from None


def _no_artifact(task_id: str, name: str) -> NoArtifact:
    return NoArtifact(f"no artifact {name} of task {task_id}", name=name)


def _key(task_id: str, name: str) -> str:
    return f"{PREFIX}{task_id}/{name}"
