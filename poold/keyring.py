"""The registry's records of API keys, for pooldctl: `keys/ID.json`, in a folder or in S3. No secret is ever in one.

Whoever changes a record lets nobody change it between reading and writing, or that change would be undone: one that
revokes must not be. In a folder that is the lock `keys/.lock`; in S3 a write is refused if the record is not the one
that was read (`If-Match`), and then everything is done again. Who only reads needs neither: records are replaced as a
whole.
"""

import asyncio
import fcntl
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from contract.errors import BadField, CallerError, NotFound, WarrenError
from contract.keys import Key
from poold import files
from poold.errors import ConfigError
from poold.places import S3Config
from poold.store import Store
from poold.store.errors import Conflict, Corrupt, Full, NoObject, Refused, Unreachable

FOLDER, LOCK = "keys", ".lock"
FILE = re.compile(r"[0-9a-f]{64}\.json")
MAX_BYTES = 65_536
MIN_PREFIX = 4  # characters of an id; fewer are not meant to name one
SHOWN_CHARS = 12
MAX_NAMED = 10
MAX_TURNS = 20  # in which others were faster, or the reply was lost
S3_ATTEMPT_S = 5  # a person waits

T = TypeVar("T")
Found = dict[str, bytes | WarrenError | OSError]  # by id: the record, or why it cannot be read
How = Callable[[bytes], bytes]


class Shelf(Protocol):
    """Where records are. Its calls block."""

    def ids(self, prefix: str) -> list[str]: ...

    def read(self, ids: Sequence[str]) -> Found:
        """What is gone by now is not in it."""
        ...

    def add(self, key_id: str, data: bytes) -> None: ...

    def change(self, key_id: str, how: How) -> None:
        """Let the record be `how` of what it is now. `how` may be called again. Raises `NotFound`."""
        ...


class Keyring:
    """The keys of one registry."""

    def __init__(self, registry: Path | S3Config) -> None:
        self._shelf: Shelf = _Folder(registry) if isinstance(registry, Path) else _Bucket(registry)

    def all(self) -> tuple[list[Key], list[str]]:
        """Every key, oldest first; and of each record that cannot be read, what is wrong with it."""
        keys, broken = [], []
        for key_id, found in self._shelf.read(self._shelf.ids("")).items():
            try:
                keys.append(_decoded(key_id, found))
            except (CallerError, Corrupt, OSError) as error:
                broken.append(f"{key_id}.json: {error}")
        return sorted(keys, key=lambda key: (key.created_ms, key.id)), broken

    def find(self, prefix: str) -> Key:
        """The one key whose id begins so."""
        if not re.fullmatch(rf"[0-9a-f]{{{MIN_PREFIX},64}}", prefix):
            raise BadField("id", prefix, f"must be at least {MIN_PREFIX} of a key's 64 hexadecimal digits")
        ids = sorted(self._shelf.ids(prefix))
        if len(ids) > 1:
            could_be = ", ".join(each[:SHOWN_CHARS] for each in ids[:MAX_NAMED])
            raise BadField("id", prefix, f"must name one key, and could be any of {could_be}")
        for key_id, found in self._shelf.read(ids).items():
            return _decoded(key_id, found)
        raise NotFound(f"there is no key {prefix}", key=prefix)

    def add(self, key: Key) -> None:
        self._shelf.add(key.id, key.encode())

    def change(self, key_id: str, how: Callable[[Key], Key]) -> Key:
        """Let the record be `how` of what it is now. Nobody changes it in between. `how` may be called again: done
        twice it must be what it is done once."""
        changed: list[Key] = []

        def changing(data: bytes) -> bytes:
            changed.append(how(_decoded(key_id, data)))
            return changed[-1].encode()

        self._shelf.change(key_id, changing)
        return changed[-1]


class _Folder:
    def __init__(self, registry: Path) -> None:
        if not registry.is_dir():
            raise ConfigError(f"there is no registry at {registry}: it must be a folder")
        self._folder = registry / FOLDER

    def ids(self, prefix: str) -> list[str]:
        names = [path.name for path in self._folder.glob("*.json")]
        return [_id(name) for name in names if FILE.fullmatch(name) and name.startswith(prefix)]

    def read(self, ids: Sequence[str]) -> Found:
        found: Found = {}
        for key_id in ids:
            try:
                found[key_id] = self._read(key_id)
            except FileNotFoundError:
                continue  # removed since we looked
            except OSError as error:
                found[key_id] = error
        return found

    def add(self, key_id: str, data: bytes) -> None:
        self._folder.mkdir(exist_ok=True)
        with self._locked():
            files.put(self._path(key_id), data)

    def change(self, key_id: str, how: How) -> None:
        with self._locked():
            files.put(self._path(key_id), how(self._read(key_id)))

    def _read(self, key_id: str) -> bytes:
        with self._path(key_id).open("rb") as file:
            return file.read(MAX_BYTES + 1)

    def _path(self, key_id: str) -> Path:
        return self._folder / f"{key_id}.json"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / LOCK).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class _Bucket:
    """Each call has a client of its own: a command makes a few."""

    def __init__(self, place: S3Config) -> None:
        self._place = replace(place, timeout_s=min(place.timeout_s, S3_ATTEMPT_S))

    def ids(self, prefix: str) -> list[str]:
        async def listed(store: Store) -> list[str]:
            names = [entry.key.removeprefix(f"{FOLDER}/") async for entry in store.list(f"{FOLDER}/{prefix}")]
            return [_id(name) for name in names if FILE.fullmatch(name)]

        return self._do(listed)

    def read(self, ids: Sequence[str]) -> Found:
        async def one(store: Store, key_id: str, found: Found) -> None:
            with suppress(NoObject):
                try:
                    found[key_id] = (await store.get(_name(key_id))).data
                except Corrupt as error:
                    found[key_id] = error

        async def several(store: Store) -> Found:
            found: Found = {}
            await asyncio.gather(*(one(store, key_id, found) for key_id in ids))
            return found

        return self._do(several)

    def add(self, key_id: str, data: bytes) -> None:
        self._do(lambda store: store.create(_name(key_id), data))

    def change(self, key_id: str, how: How) -> None:
        async def changed(store: Store) -> None:
            for turn in range(MAX_TURNS):
                try:
                    blob = await store.get(_name(key_id))
                except NoObject:
                    raise NotFound(f"there is no key {key_id[:SHOWN_CHARS]}", key=key_id) from None
                data = how(blob.data)
                if data == blob.data:
                    return  # as it is to be: by us, if a reply was lost
                try:
                    await store.replace(_name(key_id), data, blob.entry.tag)
                except (Conflict, Unreachable):  # somebody was faster, or nobody knows: so look again
                    if turn == MAX_TURNS - 1:
                        raise
                else:
                    return

        self._do(changed)

    def _do(self, work: Callable[[Store], Awaitable[T]]) -> T:
        async def done() -> T:
            from poold.store.s3 import open_s3

            async with open_s3(self._place) as store:
                return await work(store)

        try:
            return asyncio.run(done())
        except (Refused, Unreachable, Full, Conflict) as error:
            raise ConfigError(f"the registry at {self._place}: {error}") from error


def _name(key_id: str) -> str:
    return f"{FOLDER}/{key_id}.json"


def _id(name: str) -> str:
    return name.removesuffix(".json")


def _decoded(key_id: str, found: bytes | WarrenError | OSError) -> Key:
    if not isinstance(found, bytes):
        raise found
    if len(found) > MAX_BYTES:
        raise CallerError(f"a record of a key has at most {MAX_BYTES} bytes")
    key = Key.decode(found)
    if key.id != key_id:
        raise CallerError("the file has the name of another key")
    return key
