"""The registry as a folder: `hosts/NAME.json` written by hosts, `keys/ID.json` written by whoever makes keys.

Everything here blocks, and is called in a thread. Files are written beside and renamed, so what is read is whole.
"""

import contextlib
import fcntl
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from contract.errors import NotFound, WarrenError, shown
from contract.hosts import Host
from contract.keys import Key

log = logging.getLogger("gateway.registry")

MAX_FILE_BYTES = 1 << 20
LOCK = ".lock"  # as pooldctl has it
MAX_FILES = 100_000
KEY_FILE = re.compile(r"[0-9a-f]{64}\.json")
HOST_FILE = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}\.json")

T = TypeVar("T")
Version = tuple[int, int, int]  # of a file: when it was changed, its size, its inode


@dataclass(frozen=True)
class Records:
    """What the registry said when it was last read."""

    hosts: Mapping[str, Host]
    keys: Mapping[str, Key]


class _Folder(Generic[T]):
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


class Registry:
    """Hosts and keys as the folder has them, and the place where keys are written."""

    def __init__(self, folder: Path) -> None:
        self._keys_folder = folder / "keys"
        self._hosts = _Folder(folder / "hosts", HOST_FILE, Host.decode)
        self._keys = _Folder(self._keys_folder, KEY_FILE, Key.decode)

    def read(self) -> Records:
        """Everything as it is now. A record in a file of another name is not there. Raises `OSError`."""
        hosts = {name: host for name, host in self._hosts.read().items() if host.name == name}
        keys = {key_id: key for key_id, key in self._keys.read().items() if key.id == key_id}
        return Records(hosts, keys)

    def write_key(self, key: Key) -> None:
        """From now on this is the key's record. Gateways know within a second or two."""
        with self._locked():
            self._write(key)

    def change_key(self, key_id: str, how: Callable[[Key], Key]) -> Key:
        """Let the record be `how` of what it is now. Nobody changes it in between, pooldctl neither."""
        with self._locked():
            key = self.read().keys.get(key_id)
            if key is None:
                raise NotFound(f"no key {shown(key_id)}", key=shown(key_id))
            changed = how(key)
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
