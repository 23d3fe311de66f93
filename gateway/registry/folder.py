"""The registry as a folder. Files are written beside and renamed, so what is read is whole.

Everything but `FolderRegistry` blocks.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from contract.errors import NotFound, WarrenError, shown
from contract.hosts import Host
from contract.keys import Key
from gateway.errors import RegistryUnreachable
from gateway.registry.records import HOST_FILE, KEY_FILE, MAX_FILE_BYTES, MAX_FILES, Records

log = logging.getLogger("gateway.registry")

LOCK = ".lock"  # as pooldctl has it

T = TypeVar("T")
Version = tuple[int, int, int]  # of a file: when it was changed, its size, its inode


class _Files(Generic[T]):
    """The records in one folder. Only files that changed are read again."""

    def __init__(self, path: Path, names: re.Pattern[str], decode: Callable[[bytes], T]) -> None:
        self._path = path
        self._names = names
        self._decode = decode
        self._known: dict[str, tuple[Version, T | None]] = {}
        self.has_been = False  # the folder was there once

    def read(self) -> dict[str, T]:
        """By the file's name without its ending. What cannot be decoded is not there, and is logged once.

        A folder that nobody has made yet is empty. One that is gone, or that the registry is gone from around, raises
        `FileNotFoundError`: most likely it is not mounted, and that says nothing of what is in it.
        """
        try:
            found = self._found()
        except FileNotFoundError:
            if self.has_been or not self._path.parent.is_dir():
                raise
            return {}
        self.has_been = True
        self._known = found
        return {name.removesuffix(".json"): record for name, (_, record) in found.items() if record is not None}

    def _found(self) -> dict[str, tuple[Version, T | None]]:
        found: dict[str, tuple[Version, T | None]] = {}
        with os.scandir(self._path) as entries:
            for entry in entries:
                if self._names.fullmatch(entry.name) and len(found) < MAX_FILES:
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        found[entry.name] = self._one(entry)
        return found

    def _one(self, entry: "os.DirEntry[str]") -> tuple[Version, T | None]:
        status = entry.stat()
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        known = self._known.get(entry.name)
        if known is not None and known[0] == version:
            return known
        try:
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
                raise ValueError("not a record: too large, or no file")
            return version, self._decode(Path(entry.path).read_bytes())
        except (WarrenError, ValueError) as error:
            log.warning("a record cannot be read", extra={"file": entry.path, "why": str(error)})
            return version, None


class FolderRegistry:
    """What `gateway.registry.Registry` promises, of a folder. Threads wait for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = Folder(folder)

    async def read(self) -> Records:
        return await asyncio.to_thread(self._folder.read)

    async def key(self, key_id: str) -> Key:
        return await asyncio.to_thread(self._folder.key, key_id)

    async def add_key(self, key: Key) -> None:
        await asyncio.to_thread(self._folder.add_key, key)

    async def change_key(self, key_id: str, how: Callable[[Key], Key]) -> Key:
        return await asyncio.to_thread(self._folder.change_key, key_id, how)


class Folder:
    """Hosts and keys as the folder has them, and the place where keys are written."""

    def __init__(self, folder: Path) -> None:
        self._keys_folder = folder / "keys"
        self._hosts = _Files(folder / "hosts", HOST_FILE, Host.decode)
        self._keys = _Files(self._keys_folder, KEY_FILE, Key.decode)

    def read(self) -> Records:
        with _told("read"):
            return Records.named_right(self._hosts.read(), self._keys.read())

    def key(self, key_id: str) -> Key:
        key = self.read().keys.get(key_id)
        if key is None:
            raise NotFound(f"no key {shown(key_id)}", key=shown(key_id))
        return key

    def add_key(self, key: Key) -> None:
        with _told("written"), self._locked():
            self._write(key)

    def change_key(self, key_id: str, how: Callable[[Key], Key]) -> Key:
        with _told("written"), self._locked():
            changed = how(self.key(key_id))
            self._write(changed)
        return changed

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._keys.has_been:  # in place of one that is gone, a new one would hide all other keys
            self._keys_folder.mkdir(exist_ok=True)
        with (self._keys_folder / LOCK).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, key: Key) -> None:
        path = self._keys_folder / f"{key.id}.json"
        beside = self._keys_folder / f".{key.id}.{os.getpid()}"
        try:
            with beside.open("wb") as file:
                file.write(key.encode())
                file.flush()
                os.fsync(file.fileno())
            beside.rename(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RegistryUnreachable(f"the registry cannot be {what}: {error}") from error
