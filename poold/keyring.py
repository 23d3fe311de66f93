"""The registry's records of API keys: a file a key, `keys/ID.json`. No secret is ever in one.

Whoever changes a record holds the lock `keys/.lock` from reading to writing, or a change that comes in between would
be undone: one that revokes must not be. Who only reads needs no lock: files are replaced as a whole.
"""

import fcntl
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from contract.errors import BadField, CallerError, NotFound
from contract.keys import Key
from poold import files
from poold.errors import ConfigError

FOLDER, LOCK = "keys", ".lock"
FILE = re.compile(r"[0-9a-f]{64}\.json")
MAX_BYTES = 65_536
MIN_PREFIX = 4  # characters of an id; fewer are not meant to name one
SHOWN_CHARS = 12
MAX_NAMED = 10


class Keyring:
    """The keys in the folder of one registry."""

    def __init__(self, registry: Path) -> None:
        if not registry.is_dir():
            raise ConfigError(f"there is no registry at {registry}: it must be a folder")
        self._folder = registry / FOLDER

    def all(self) -> tuple[list[Key], list[str]]:
        """Every key, oldest first; and of each file that cannot be read, what is wrong with it."""
        keys, broken = [], []
        for path in self._files():
            try:
                keys.append(_read(path))
            except FileNotFoundError:
                continue  # removed since we looked
            except (CallerError, OSError) as error:
                broken.append(f"{path.name}: {error}")
        return sorted(keys, key=lambda key: (key.created_ms, key.id)), broken

    def find(self, prefix: str) -> Key:
        """The one key whose id begins so."""
        if not re.fullmatch(rf"[0-9a-f]{{{MIN_PREFIX},64}}", prefix):
            raise BadField("id", prefix, f"must be at least {MIN_PREFIX} of a key's 64 hexadecimal digits")
        names = sorted(path.name.removesuffix(".json") for path in self._files() if path.name.startswith(prefix))
        if not names:
            raise NotFound(f"there is no key {prefix}", key=prefix)
        if len(names) > 1:
            could_be = ", ".join(name[:SHOWN_CHARS] for name in names[:MAX_NAMED])
            raise BadField("id", prefix, f"must name one key, and could be any of {could_be}")
        return _read(self._path(names[0]))

    def add(self, key: Key) -> None:
        self._folder.mkdir(exist_ok=True)
        with self._locked():
            files.put(self._path(key.id), key.encode())

    def change(self, key_id: str, how: Callable[[Key], Key]) -> Key:
        """Let the record be `how` of what it is now. Nobody changes it in between."""
        with self._locked():
            changed = how(_read(self._path(key_id)))
            files.put(self._path(key_id), changed.encode())
        return changed

    def _files(self) -> list[Path]:
        return [path for path in self._folder.glob("*.json") if FILE.fullmatch(path.name)]

    def _path(self, key_id: str) -> Path:
        return self._folder / f"{key_id}.json"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / LOCK).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _read(path: Path) -> Key:
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise CallerError(f"a record of a key has at most {MAX_BYTES} bytes")
    key = Key.decode(data)
    if path.name != f"{key.id}.json":
        raise CallerError("the file has the name of another key")
    return key
