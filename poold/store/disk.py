"""A folder of objects, as blocking calls. A file each: a header (`poold.store.header`) and the content.

A new object is written under a name of its own in `.new`, synced, and gets its place by one rename (or link, if nobody
may have been there), with the lock of its key held. Who reads has the file open, and reads that object to its end.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from poold import files
from poold.store import Entry, header
from poold.store.errors import Conflict, Corrupt, Full, NoObject, Refused, Unreachable, WrongContent
from poold.store.header import Header
from poold.store.locks import locked

ABANDONED_S = 86_400.0  # nobody has written to it for so long: its writer is gone
TRIES = 16  # of a rename into a folder that others remove because it is empty
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
            errno.EOPNOTSUPP, errno.ENAMETOOLONG}  # fmt: skip


@contextlib.contextmanager
def translated(doing: str, what: str) -> Iterator[None]:
    """The errors of the store for an `OSError` of the block."""
    try:
        yield
    except OSError as error:
        told = f"{doing} {what!r} in the store's folder failed: {error.strerror or error}"
        if error.errno in _FULL:
            raise Full(f"{told}; make room there, no restart is needed", retry_after_s=30) from error
        if error.errno in _REFUSED:
            raise Refused(told) from error
        raise Unreachable(told) from error


class _Taken(Exception):
    """There is an object in this place."""


class _Stale(Exception):
    """Over NFS: another host has replaced it since its name was looked up."""


class Draft:
    """An object that is being written, and has no place yet. Its calls wait for each other, whoever makes them."""

    def __init__(self, folder: Path, key: str, told: Header) -> None:
        self.key, self.told = key, told
        self.path = folder / told.tag
        self.bytes = 0
        self._hash = hashlib.sha256()
        self._lock = threading.Lock()
        self._descriptor = -1

    def begin(self) -> None:
        with self._lock, translated("writing", self.key):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, files.PRIVATE)
            self._append(self.told.line())

    def add(self, data: bytes) -> None:
        with self._lock, translated("writing", self.key):
            self.bytes += len(data)
            if self.bytes > self.told.size:
                raise WrongContent(self.key, f"it has more than {self.told.size} bytes")
            self._hash.update(data)
            self._append(data)

    def end(self) -> None:
        """All of it is on disk, and is what was said."""
        with self._lock, translated("writing", self.key):
            if self.bytes != self.told.size:
                raise WrongContent(self.key, f"it has {self.bytes} bytes instead of {self.told.size}")
            if self._hash.hexdigest() != self.told.sha256:
                raise WrongContent(self.key, "its SHA-256 is another")
            os.fsync(self._descriptor)

    def close(self) -> None:
        """What did not get a place is gone."""
        with self._lock, translated("removing", self.key):
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
                self.path.unlink(missing_ok=True)

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


class Opened:
    """An object that is being read: from where to where."""

    def __init__(self, key: str, descriptor: int, told: Header, start: int, end: int | None) -> None:
        self.entry = Entry(key, told.size, told.tag, told.sha256)
        self._end = told.size if end is None else min(end, told.size)
        self._at = min(start, self._end)
        self._descriptor = descriptor
        self._hash = hashlib.sha256() if (self._at, self._end) == (0, told.size) else None
        self._lock = threading.Lock()

    def next(self, most: int) -> bytes:
        """The next piece, or nothing at the end. Raises `Corrupt` if it is not what was written."""
        key = self.entry.key
        with self._lock, translated("reading", key):
            left = self._end - self._at
            data = os.pread(self._descriptor, min(most, left), header.LENGTH + self._at) if left else b""
            if left and not data:
                raise Corrupt(key, f"it ends after {self._at} of {self.entry.bytes} bytes")
            self._at += len(data)
            if self._hash is not None:
                self._hash.update(data)
                if self._at == self._end and self._hash.hexdigest() != self.entry.sha256:
                    raise Corrupt(key, "its SHA-256 is another")
            return data

    def close(self) -> None:
        with self._lock:
            os.close(self._descriptor)


class Disk:
    """All objects below one folder. Every call blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks, self._new = folder / ".locks", folder / ".new"

    def prepare(self) -> None:
        """Make what is not there yet."""
        with translated("opening", str(self._folder)):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self._locks, self._new):
                folder.mkdir(mode=0o700, exist_ok=True)

    def sweep(self) -> None:
        """Remove what writers that are gone have left in `.new`."""
        with translated("sweeping", str(self._new)):
            mark = self._new / f"now-{secrets.token_hex(8)}"
            mark.touch()  # the time of whoever keeps the files
            now = mark.stat().st_mtime
            mark.unlink()
            for path in self._new.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime < now - ABANDONED_S:
                        path.unlink()

    def draft(self, key: str, size: int, sha256: str) -> Draft:
        return Draft(self._new, key, Header(size, sha256, secrets.token_hex(16)))

    def open(self, key: str, start: int = 0, end: int | None = None) -> Opened:
        with translated("reading", key):
            for _ in range(TRIES):
                with contextlib.suppress(_Stale):
                    return self._opened(key, start, end)
            raise Unreachable(f"{key!r} in the store's folder is replaced faster than it can be opened")

    def _opened(self, key: str, start: int, end: int | None) -> Opened:
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self._must_be_there()
            raise NoObject(key) from None
        except OSError as error:
            if error.errno == errno.ESTALE:
                raise _Stale from error
            raise
        try:
            return Opened(key, descriptor, _header(key, descriptor), start, end)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError) and error.errno == errno.ESTALE:
                raise _Stale from error
            raise

    def head(self, key: str) -> Entry:
        opened = self.open(key)
        opened.close()
        return opened.entry

    def put(self, draft: Draft, *, until: float) -> None:
        with self._having(draft.key, until):
            self._place(draft, os.rename)

    def create(self, draft: Draft, *, until: float) -> None:
        with self._having(draft.key, until):
            try:
                self._place(draft, _link)
            except _Taken:
                raise Conflict(draft.key, "is there already") from None

    def replace(self, draft: Draft, tag: str, *, until: float) -> None:
        with self._having(draft.key, until):
            try:
                self._must_have(draft.key, tag)
            except NoObject:
                raise Conflict(draft.key, "is gone") from None
            self._place(draft, os.rename)

    def delete(self, key: str, tag: str | None, *, until: float) -> None:
        path = self._path(key)
        with self._having(key, until), contextlib.suppress(NoObject):
            if tag is not None:
                self._must_have(key, tag)
            try:
                path.unlink()
            except FileNotFoundError:
                self._must_be_there()
                return
            self._sync_above(path)
            with contextlib.suppress(OSError):  # it is not empty
                for folder in self._parents(path):
                    folder.rmdir()

    def walk(self, prefix: str, after: str) -> Iterator[Entry]:
        """By key, as bytes are ordered: a folder is where its name and a slash would be."""
        with translated("listing", prefix):
            self._must_be_there()
            yield from self._walk(self._folder, "", prefix, after)

    def _walk(self, folder: Path, above: str, prefix: str, after: str) -> Iterator[Entry]:
        try:
            with os.scandir(folder) as found:
                names = sorted(
                    f"{above}{entry.name}{'/' if entry.is_dir(follow_symlinks=False) else ''}"
                    for entry in found
                    if not entry.name.startswith(".")
                )
        except FileNotFoundError:
            return
        for name in names:
            if name.endswith("/"):
                is_asked = name.startswith(prefix) or prefix.startswith(name)
                if is_asked and (name > after or after.startswith(name)):
                    yield from self._walk(self._folder / name, name, prefix, after)
            elif name.startswith(prefix) and name > after and (entry := self._listed(name)) is not None:
                yield entry

    def _listed(self, key: str) -> Entry | None:
        """None: it was removed meanwhile."""
        try:
            entry = self.head(key)
        except NoObject:
            return None
        except (Corrupt, Refused):
            facts = self._path(key).lstat()
            return Entry(key, max(0, facts.st_size - header.LENGTH), "", written_ms=facts.st_mtime_ns // 1_000_000)
        return Entry(key, entry.bytes, entry.tag, written_ms=self._written_ms(key))

    def _written_ms(self, key: str) -> int | None:
        try:
            return self._path(key).lstat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def _having(self, key: str, until: float) -> Iterator[None]:
        with translated("writing", key), locked(self._locks, key, until=until):
            if time.monotonic() > until:
                raise Unreachable(f"the store's folder was too slow for {key!r}; nothing was changed")
            yield

    def _must_have(self, key: str, tag: str) -> None:
        if self.head(key).tag != tag:
            raise Conflict(key, "is another one by now")

    def _must_be_there(self) -> None:
        """A folder that is not mounted is no empty store."""
        if not self._locks.is_dir():
            raise Unreachable(f"the store's folder {self._folder} is not there: is it mounted?")

    def _place(self, draft: Draft, move: Callable[[Path, Path], None]) -> None:
        path = self._path(draft.key)
        for left in reversed(range(TRIES)):
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                move(draft.path, path)
                break
            except FileNotFoundError:  # somebody has removed the folder that was empty
                if not left:
                    raise
        for folder in (*self._parents(path), self._folder):
            files.sync(folder)

    def _sync_above(self, path: Path) -> None:
        """Others may remove folders that are empty by now."""
        for folder in (*self._parents(path), self._folder):
            with contextlib.suppress(FileNotFoundError):
                files.sync(folder)
                return

    def _parents(self, path: Path) -> list[Path]:
        """The folders between the store's and `path`, the innermost first."""
        return list(path.parents[: len(path.relative_to(self._folder).parts) - 1])

    def _path(self, key: str) -> Path:
        return self._folder / key


def _link(draft: Path, path: Path) -> None:
    """Nobody can win this twice, also where locks are not what they should be."""
    try:
        os.link(draft, path)
    except FileExistsError:
        if path.is_dir():
            raise
        raise _Taken from None


def _header(key: str, descriptor: int) -> Header:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"{key!r} in the store's folder is no file but a folder or something else")
    told = header.parse(os.pread(descriptor, header.LENGTH, 0))
    if told is None:
        raise Corrupt(key, "it does not begin as an object does")
    if found.st_size != header.LENGTH + told.size:
        raise Corrupt(key, f"it has {found.st_size - header.LENGTH} bytes instead of {told.size}")
    return told
