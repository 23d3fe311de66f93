"""The operator's secrets: a file each, `OWNER/NAME`, or `all/NAME` for every owner. Read when needed, kept nowhere.

A file that anybody but its owner may read is not a secret, and is not taken for one.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from contract.errors import BadField, NotFound
from contract.models import OWNER
from poold import files
from poold.errors import ConfigError

NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
EVERYBODY = "all"
MAX_BYTES = 65_536  # a variable of a process cannot have many more


class Unsafe(Exception):
    """The file is there and must not be used. The message names it, and never what is in it."""


class SecretFiles:
    """The secrets in one folder. Names that are no names are refused with `BadField` before any file is looked at."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError(f"there are no secrets at {folder}: it must be a folder")
        self._folder = folder

    def read(self, owner: str, name: str) -> str | None:
        """The owner's own, else everybody's, else None. Raises `Unsafe` for what must not be used."""
        for whose in dict.fromkeys((owner, EVERYBODY)):
            path = self._path(whose, name)
            try:
                return _text(path, _read(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise Unsafe(f"the secret {path} cannot be read: {error.strerror}") from None
        return None

    def put(self, owner: str, name: str, value: bytes) -> None:
        path = self._path(owner, name)
        checked_value(value)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        files.put(path, value, files.PRIVATE)

    def remove(self, owner: str, name: str) -> None:
        try:
            self._path(owner, name).unlink()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"{owner} has no secret {name}", owner=owner, name=name) from None

    def listed(self) -> Iterator[tuple[str, str, str | None]]:
        """Owner, name, and what is wrong with it if something is. Whatever has not the form of one is none."""
        for folder in sorted(path for path in self._folder.iterdir() if OWNER.fullmatch(path.name) and path.is_dir()):
            for path in sorted(path for path in folder.iterdir() if NAME.fullmatch(path.name)):
                yield folder.name, path.name, _problem(path)

    def _path(self, owner: str, name: str) -> Path:
        """An owner's name has no slash and begins with no dot, so it is one folder of ours."""
        if not OWNER.fullmatch(owner):
            raise BadField("owner", owner, "must be letters, digits and _.@-, at most 64")
        if not NAME.fullmatch(name):
            raise BadField("name", name, f"must match {NAME.pattern}")
        return self._folder / owner / name


def checked_value(value: bytes) -> None:
    """Raises `BadField` for what cannot be a variable. The value is never in the message."""
    if not value:
        raise BadField("value", "", "must not be empty")
    if len(value) > MAX_BYTES:
        raise BadField("value", f"{len(value)} bytes", f"must have at most {MAX_BYTES} bytes")
    if b"\0" in value or not _is_text(value):
        raise BadField("value", f"{len(value)} bytes", "must be UTF-8 without a NUL")


def _problem(path: Path) -> str | None:
    try:
        _text(path, _read(path))
    except Unsafe as error:
        return str(error)
    except OSError as error:
        return f"the secret {path} cannot be read: {error.strerror}"
    return None


def _read(path: Path) -> bytes:
    """What is looked at is what is read: the file that is open, and not a name that may become another's."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if path.parent.stat().st_mode & 0o022:
            raise Unsafe(f"others may put something in place of the secret {path}: make its folder 0700")
        if not stat.S_ISREG(found.st_mode):
            raise Unsafe(f"the secret {path} is not a file")
        if found.st_mode & 0o077:
            raise Unsafe(f"the secret {path} is open to others (mode {found.st_mode & 0o777:04o}): make it 0600")
        if found.st_uid not in (0, os.geteuid()):
            raise Unsafe(f"the secret {path} belongs to user {found.st_uid}: make it root's")
        return file.read(MAX_BYTES + 1)


def _text(path: Path, value: bytes) -> str:
    """As an editor leaves it: one end of a line at the end is not of the secret."""
    try:
        checked_value(kept := value.removesuffix(b"\n"))
    except BadField as error:
        raise Unsafe(f"the secret {path}: {error.message}") from None
    return kept.decode()


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
