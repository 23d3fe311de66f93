"""The golden memories that hibernated machines are differences of: in the store once each, and some of them on disk.

A golden memory is named after its content. Two hosts boot two of them from one image, so a machine can only be put
together with the very one that it began with. Whoever writes one writes it into a folder of its own; the manifest,
written last, says which of them counts.
"""

import asyncio
import contextlib
import os
import shutil
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from poold.engines import sparse
from poold.errors import HostFault
from poold.hibernate import frames, packing, unpacking
from poold.hibernate.blocking import in_thread
from poold.hibernate.errors import Damaged
from poold.hibernate.manifest import FILE, Golden, decode_golden, encode
from poold.hibernate.packing import Told
from poold.store import Blob, Store, silent
from poold.store.errors import Conflict, Corrupt, NoObject

FOLDER = "goldens"
MEMORY = "memory"
DYING = "dying"  # beside the parts of one that is being swept away: whoever needs it writes another
MOST = 16  # on disk, about 100 MB each; those that nobody wanted for longest go first
KNOWN = 64  # names of files, so that none is read twice

Note = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class Notes:
    """Where it is written down, before anything is put into the store, what is to be removed if it comes to nothing."""

    add: Note
    drop: Note


class Goldens:
    """Those of one store, with `folder` for the ones that this host has had or needed."""

    def __init__(self, store: Store, folder: Path, notes: Notes, entropy: Callable[[int], bytes]) -> None:
        self._store = store
        self._folder = folder
        self._notes = notes
        self._entropy = entropy
        self._names: OrderedDict[tuple[int, int, int, int], str] = OrderedDict()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.under_way: set[str] = set()  # what is being written, and not to be swept away

    async def keep(self, memory: Path) -> str:
        """See that the store has this memory, as a whole. Returns its name."""
        name = await self._name_of(memory)
        async with self._turns.setdefault(name, asyncio.Lock()):
            await in_thread("keeping", str(memory), self._share, memory, name)
            known = await self._known(name)
            if known is None or not await self._is_whole(name, known):
                await self._write(name, memory, known)
        return name

    async def fetch(self, name: str) -> Path:
        """The memory of this name, on disk. Raises `Damaged` if the store has it no more."""
        folder = self._folder / name
        async with self._turns.setdefault(name, asyncio.Lock()):
            if await asyncio.to_thread(folder.is_dir):
                await in_thread("keeping", name, os.utime, folder)
            else:
                await self._fetch(name, folder)
        return folder / MEMORY

    async def is_counted(self, prefix: str) -> bool:
        """Whether the parts below `prefix` are those that count."""
        _, name, at, *_ = prefix.split("/")
        known = await self._known(name)
        return known is not None and decode_golden(known.entry.key, known.data).at == at

    async def _fetch(self, name: str, folder: Path) -> None:
        key = f"{FOLDER}/{name}/{FILE}"
        known = await self._known(name)
        if known is None:
            raise Damaged(key, "it is missing")
        golden = decode_golden(key, known.data)
        if golden.file.sha256 != name:
            raise Damaged(key, f"it is that of {golden.file.sha256}")
        making = self._folder / f".{name}"
        try:
            await in_thread("fetching", name, _begin, making)
            told = Told(silent, golden.file.stored_bytes)
            prefix = f"{FOLDER}/{name}/{golden.at}/"
            await unpacking.unpack(self._store, prefix, golden.file, making / MEMORY, told)
            await in_thread("fetching", name, _commit, making, folder)
        finally:
            await in_thread("fetching", name, _remove, making)
        await in_thread("fetching", name, self._prune)

    async def _known(self, name: str) -> Blob | None:
        try:
            return await self._store.get(f"{FOLDER}/{name}/{FILE}")
        except NoObject:
            return None
        except Corrupt as error:
            raise Damaged(error.key, error.problem) from error

    async def _is_whole(self, name: str, known: Blob) -> bool:
        """Whether every part is there, and nobody is about to sweep them away (`poold.sweeping`).

        Only their sizes are looked at: they were read back when they were written.
        """
        golden = decode_golden(known.entry.key, known.data)
        prefix = f"{FOLDER}/{name}/{golden.at}/"
        there = {entry.key: entry.bytes async for entry in self._store.list(prefix)}
        is_there = all(there.get(prefix + part.name) == part.bytes for part in golden.file.parts)
        return is_there and prefix + DYING not in there

    async def _write(self, name: str, memory: Path, known: Blob | None) -> None:
        """Write it into a folder of our own, and let that be the one that counts unless somebody else was faster."""
        at = self._entropy(8).hex()
        key, prefix = f"{FOLDER}/{name}/{FILE}", f"{FOLDER}/{name}/{at}/"
        self.under_way.add(prefix)
        try:
            await self._notes.add(prefix)
            told = Told(silent, 0)
            file = await packing.pack(self._store, prefix, "memory", memory, told)
            if file.sha256 != name:
                raise HostFault("reading", str(memory), hint="it changed while it was read")
            await packing.check(self._store, prefix, [file], told)
            data = encode(Golden(at, file))
            with contextlib.suppress(Conflict):  # then theirs counts, and ours is swept away
                if known is None:
                    await self._store.create(key, data)
                else:
                    await self._store.replace(key, data, known.entry.tag)
                await self._notes.drop(prefix)
        finally:
            self.under_way.discard(prefix)

    async def _name_of(self, memory: Path) -> str:
        status = await asyncio.to_thread(memory.stat)
        key = status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
        if key not in self._names:
            self._names[key] = await in_thread("reading", str(memory), frames.content_hash, memory)
            while len(self._names) > KNOWN:
                self._names.popitem(last=False)
        return self._names[key]

    # All that follows blocks.

    def _share(self, memory: Path, name: str) -> None:
        """This host has it: a machine that comes back here needs no other."""
        folder, making = self._folder / name, self._folder / f".{name}"
        if not folder.is_dir():
            _begin(making)
            sparse.share(memory, making / MEMORY)
            _commit(making, folder)
        os.utime(folder)
        self._prune()

    def _prune(self) -> None:
        found = (path for path in self._folder.iterdir() if not path.name.startswith("."))
        for path in sorted(found, key=lambda path: path.stat().st_mtime)[:-MOST]:
            _remove(path)


def _begin(making: Path) -> None:
    _remove(making)
    making.mkdir(mode=0o700, parents=True)


def _commit(making: Path, folder: Path) -> None:
    sparse.sync(making / MEMORY)
    sparse.sync(making)
    making.rename(folder)
    sparse.sync(folder.parent)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
