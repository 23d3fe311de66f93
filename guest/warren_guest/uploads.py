"""A file being written: opened, given, filled batch by batch, closed. Plain functions that may block.

A new small file is one create, one change of owner and one write, in this order, for whoever watches its folder.
"""

import os
import re
import stat
from dataclasses import dataclass

from warren_guest.accounts import Account, Accounts
from warren_guest.fields import bad_field
from warren_guest.files import give, make_parents, said_of
from warren_guest.paths import Entry, bad_path, entry_of

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/(?:\*|[0-9]{1,18})")
_MODE = re.compile(r"0?[0-7]{1,4}")
# The most buffers that one writev takes.
_VECTOR = 512


def parse_content_range(text: str | None) -> tuple[int, int] | None:
    """`(offset, count)` of a `Content-Range` header."""
    if text is None:
        return None
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match is None or int(match[2]) < int(match[1]):
        raise bad_field("Content-Range", f"{text[:80]!a} is not bytes a-b/*")
    return int(match[1]), int(match[2]) - int(match[1]) + 1


def parse_mode(text: str | None, field: str = "mode") -> int | None:
    if text is None:
        return None
    if _MODE.fullmatch(text) is None:
        raise bad_field(field, f"{text[:20]!a} is not an octal mode")
    return int(text, 8)


@dataclass(slots=True)
class Upload:
    """What a body becomes: the whole file at `path`, or `count` bytes of it from `offset`."""

    path: str
    account: Account
    mode: int | None = None
    offset: int = 0
    count: int | None = None
    written: int = 0
    _fd: int = -1

    def write(self, pieces: list[bytes]) -> None:
        """Write the next batch. The first call opens the file, even with nothing to write."""
        size = sum(map(len, pieces))
        if self.count is not None and self.written + size > self.count:
            raise bad_field("Content-Range", f"the body is longer than the {self.count} bytes of the range")
        with said_of(self.path):
            if self._fd < 0:
                self._open()
            write_all(self._fd, pieces)
        self.written += size

    def finish(self, accounts: Accounts) -> Entry:
        """The entry of the written file. Raises if the range was not filled."""
        self.close()
        if self.count is not None and self.written != self.count:
            raise bad_field("Content-Range", f"the body has {self.written} of the {self.count} bytes of the range")
        return entry_of(self.path, accounts)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with said_of(self.path):
                os.close(fd)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        mode = 0o644 if self.mode is None else self.mode
        try:
            self._fd = self._create(flags, mode)
            give(self._fd, self.account)
            if mode & 0o6000:  # a change of owner clears these
                os.fchmod(self._fd, mode)
        except FileExistsError:
            self._fd = os.open(self.path, flags | (os.O_TRUNC if self.count is None else 0))
            facts = os.fstat(self._fd)
            if not stat.S_ISREG(facts.st_mode):
                self.close()
                raise bad_path(f"{self.path} is not a regular file", "path") from None
            if self.mode is not None and stat.S_IMODE(facts.st_mode) != self.mode:
                os.fchmod(self._fd, self.mode)
        if self.offset:
            os.lseek(self._fd, self.offset, os.SEEK_SET)

    def _create(self, flags: int, mode: int) -> int:
        flags |= os.O_CREAT | os.O_EXCL
        try:
            return os.open(self.path, flags, mode)
        except FileNotFoundError:
            make_parents(self.path, self.account)
            return os.open(self.path, flags, mode)


def write_all(fd: int, pieces: list[bytes]) -> None:
    """Write every byte, without joining the pieces first."""
    views = [memoryview(piece) for piece in pieces]
    while views:
        written = os.writev(fd, views[:_VECTOR])
        done = 0
        while done < len(views) and written >= len(views[done]):
            written -= len(views[done])
            done += 1
        del views[:done]
        if written:
            views[0] = views[0][written:]


def write_whole(upload: Upload, pieces: list[bytes], accounts: Accounts) -> Entry:
    """A file that is known as a whole, in one go."""
    try:
        upload.write(pieces)
        return upload.finish(accounts)
    finally:
        upload.close()
