"""Files that are there as a whole or not at all, also after a crash: written beside, synced, and renamed.

And short names for those whose name may not be long.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

OPEN, PRIVATE = 0o644, 0o600


def put(path: Path, data: bytes, mode: int = OPEN) -> None:
    """Let `path` hold `data`. Whoever reads finds what was there before, or all of the new."""
    beside = _beside(path)
    try:
        _write(beside, data, mode)
        beside.rename(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def put_folder(path: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Make the folder `path`, for its owner only, with these files (their data and modes).

    Raises `OSError` and changes nothing if something is there already, other than an empty folder.
    """
    path = path.resolve()
    beside = _beside(path)
    beside.mkdir(mode=0o700)
    try:
        for name, (data, mode) in files.items():
            _write(beside / name, data, mode)
        sync(beside)
        beside.rename(path)
    except BaseException:
        shutil.rmtree(beside)
        raise
    sync(path.parent)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def _write(path: Path, data: bytes, mode: int) -> None:
    """The mode is there from the first moment: nobody can have opened it before."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """A name is on disk when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A short name for `path` during the block: a unix socket's name may have 107 bytes only."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
