"""Watches: what changes in a folder, as inotify tells it.

`drain` returns everything that happened before it was called, so a caller who asks right after a change sees it.
"""

import errno
import os
import struct
from collections.abc import Iterator

from warren_guest import syscalls
from warren_guest.errors import RefusedError, refusal_of

_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 * 1024
_READS = 72  # as much as the kernel keeps: 16,384 events of at most 272 bytes
_MASK = (
    syscalls.IN_CREATE
    | syscalls.IN_MODIFY
    | syscalls.IN_ATTRIB
    | syscalls.IN_DELETE
    | syscalls.IN_MOVED_FROM
    | syscalls.IN_MOVED_TO
    | syscalls.IN_ONLYDIR
    | syscalls.IN_EXCL_UNLINK
)
_KINDS = (
    (syscalls.IN_CREATE | syscalls.IN_MOVED_TO, "create"),
    (syscalls.IN_MODIFY, "write"),
    (syscalls.IN_ATTRIB, "chmod"),
    (syscalls.IN_DELETE, "remove"),
    (syscalls.IN_MOVED_FROM, "rename"),
)

# A kind of the contract and a name relative to the watched folder; `overflow` has no name.
Change = tuple[str, str]


class Watch:
    """One watched folder. `is_over` once the folder itself is gone. Close it."""

    def __init__(self, path: str, recursive: bool) -> None:
        """May block. Raises `not_found`, `not_a_directory` or `too_many_watches`, and then holds nothing."""
        self._path = path
        self._recursive = recursive
        self._names: dict[int, str] = {}
        # Reported because a new folder was looked through; inotify may be about to say the same.
        self._found: set[str] = set()
        self.is_over = False
        self.fd = _opened(path)
        try:
            self._root = self._add("", 0)
            if recursive and ("overflow", "") in list(self._adopt("")):
                raise OSError(errno.ENOSPC, "there are too many folders")
            self._found.clear()
        except OSError as exc:
            os.close(self.fd)
            raise _refusal(exc, path) from exc

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def drain(self) -> list[Change]:
        """What happened since the last call. Never waits for something to happen, nor for it to stop happening."""
        changes: list[Change] = []
        for _ in range(_READS):
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                # The queue is empty: what was found by looking can no longer be told a second time.
                self._found.clear()
                return changes
            at = 0
            while at < len(data):
                watch, mask, _cookie, length = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
                at += _EVENT.size + length
                changes += self._changes(watch, mask, os.fsdecode(name))
        return changes

    def _changes(self, watch: int, mask: int, name: str) -> Iterator[Change]:
        if mask & syscalls.IN_Q_OVERFLOW:
            yield "overflow", ""
        if mask & syscalls.IN_IGNORED:
            self._names.pop(watch, None)
            self.is_over = self.is_over or watch == self._root
        folder = self._names.get(watch)
        if folder is None or not name:
            return  # of a folder that moved away, or about the watched folder itself
        path = f"{folder}/{name}" if folder else name
        kind = next((kind for bits, kind in _KINDS if mask & bits), None)
        if kind is None or (kind == "create" and path in self._found):
            self._found.discard(path)
            return
        yield kind, path
        if kind in ("remove", "rename"):
            self._found.discard(path)
        if self._recursive and mask & syscalls.IN_ISDIR:
            if kind == "rename":
                self._forget_below(path)
            elif kind == "create":
                yield from self._adopt(path)

    def _adopt(self, path: str) -> Iterator[Change]:
        """Watch a new folder and those in it, and report what is already there, parents first."""
        ahead = [path]
        while ahead:
            folder = ahead.pop()
            try:
                self._add(folder, syscalls.IN_DONT_FOLLOW if folder else 0)
            except OSError as exc:
                if not folder:
                    raise
                if exc.errno in (errno.ENOSPC, errno.ENOMEM):
                    yield "overflow", ""  # changes below it will not be seen
                continue
            for name, is_folder in self._items_of(folder):
                child = f"{folder}/{name}" if folder else name
                self._found.add(child)
                yield "create", child
                if is_folder:
                    ahead.append(child)

    def _items_of(self, folder: str) -> list[tuple[str, bool]]:
        try:
            with os.scandir(os.path.join(self._path, folder)) as found:  # noqa: PTH118
                return sorted((item.name, item.is_dir(follow_symlinks=False)) for item in found)
        except OSError:
            return []  # gone again

    def _add(self, path: str, flags: int) -> int:
        watch = syscalls.inotify_watch(self.fd, os.path.join(self._path, path), _MASK | flags)  # noqa: PTH118
        self._names[watch] = path
        return watch

    def _forget_below(self, path: str) -> None:
        """A folder moved away: its watches follow it, and would tell of it under a name that is not its own."""
        for watch, name in list(self._names.items()):
            if name == path or name.startswith(f"{path}/"):
                del self._names[watch]
                try:
                    syscalls.inotify_forget(self.fd, watch)
                except OSError:
                    continue  # removed in the meantime


def _opened(path: str) -> int:
    try:
        return syscalls.inotify_open()
    except OSError as exc:
        raise _refusal(exc, path) from exc


def _refusal(error: OSError, path: str) -> RefusedError:
    if error.errno in (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return RefusedError("too_many_watches", f"the kernel watches no more: {error.strerror}")
    return refusal_of(error, path)
