"""Files: opened, listed, made, moved, removed. Plain functions that may block; called from a thread.

They act with the guest's own rights and give what is new to the account that asked. Every `OSError` leaves this room
as a refusal.
"""

import contextlib
import errno
import io
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from warren_guest.accounts import Account, Accounts
from warren_guest.errors import RefusedError, refusal_of
from warren_guest.paths import Entry, bad_path, entry_of

LIST_LIMIT = 10_000
# Files up to this size are read where they are opened and sent with their head: one hop, one packet.
SMALL = 64 * 1024
_READ_BYTES = 1 << 18
_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{1,18})?|-([0-9]{1,18}))")


@contextlib.contextmanager
def said_of(path: str) -> Iterator[None]:
    """Turn what the kernel says in the block into a refusal about `path`."""
    try:
        yield
    except OSError as exc:
        raise refusal_of(exc, path) from exc


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file to read. `size` is None where the kernel does not know it, as in /proc.

    `start` are its first bytes: all of them if they are few, some if the size is not known, else none.
    """

    file: io.FileIO
    size: int | None
    start: bytes


def open_to_read(path: str) -> OpenFile:
    """Open a regular file. A folder, FIFO, socket or device is refused, and none of them is waited for."""
    with said_of(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            code = "is_a_directory" if stat.S_ISDIR(mode) else "bad_path"
            raise RefusedError(code, f"{path} is not a regular file", field="path")
        file = io.FileIO(fd)
        # An empty file and a file of /proc look the same; reading tells.
        size = os.fstat(fd).st_size or None
        start = os.read(fd, SMALL) if size is None or size <= SMALL else b""
        return OpenFile(file, size, start)


def read_some(file: io.FileIO) -> bytes:
    with said_of(str(file.name)):
        return os.read(file.fileno(), _READ_BYTES)


def parse_range(text: str, size: int) -> tuple[int, int] | None:
    """`(offset, count)` of a `Range` header; None if it is not one that we serve (then the whole file is the answer).

    Raises `bad_range` if it is one but holds no byte of the file.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return None
    first, last, tail = match.groups()
    if tail is not None:
        start, end = max(size - int(tail), 0), size - 1
    else:
        start, end = int(first), min(int(last), size - 1) if last is not None else size - 1
        if last is not None and int(last) < start:
            return None
    if start > end:
        raise RefusedError("bad_range", f"{text[:80]} holds no byte of a file of {size}", field="Range")
    return start, end - start + 1


def make_parents(path: str, account: Account) -> None:
    """Make what is missing above `path`; each new folder belongs to `account`."""
    parent = os.path.dirname(path)  # noqa: PTH120
    missing: list[str] = []
    while not os.path.isdir(parent):  # noqa: PTH112
        missing.append(parent)
        parent = os.path.dirname(parent)  # noqa: PTH120
    for folder in reversed(missing):
        with said_of(folder), contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)  # noqa: PTH102 - its mode is exact because our umask is 0
            give(folder, account)


def give(path: str | int, account: Account) -> None:
    """Make `account` the owner. A guest that is not root owns everything it makes, and cannot give it away."""
    if os.geteuid() == 0:
        os.chown(path, account.uid, account.gid, follow_symlinks=isinstance(path, int))


def make_folder(path: str, account: Account, accounts: Accounts) -> Entry:
    if os.path.lexists(path):
        if os.path.isdir(path):  # noqa: PTH112
            raise RefusedError("already_exists", f"{path} exists", field="path")
        raise RefusedError("not_a_directory", f"{path} exists and is not a folder", field="path")
    make_parents(path, account)
    with said_of(path):
        os.mkdir(path, 0o755)  # noqa: PTH102
        give(path, account)
    return entry_of(path, accounts)


def list_folder(path: str, depth: int, accounts: Accounts) -> tuple[list[Entry], bool]:
    """What is below `path` to `depth`, and whether there was more than the limit. Links are not followed."""
    if not os.path.isdir(path):  # noqa: PTH112
        kind = entry_of(path, accounts)["type"]
        raise RefusedError("not_a_directory", f"{path} is not a folder but a {kind}", field="path")
    entries: list[Entry] = []
    ahead = [_names_in(path)]
    while ahead:
        try:
            child, is_folder = next(ahead[-1])
        except StopIteration:
            ahead.pop()
            continue
        if len(entries) == LIST_LIMIT:
            return entries, True
        with contextlib.suppress(RefusedError):  # removed while we looked
            entries.append(entry_of(child, accounts))
            if is_folder and len(ahead) < depth:
                ahead.append(_names_in(child))
    return entries, False


def _names_in(path: str) -> Iterator[tuple[str, bool]]:
    with said_of(path), os.scandir(path) as found:
        ordered = sorted((item.name, item.path, item.is_dir(follow_symlinks=False)) for item in found)
    return ((child, is_folder) for _, child, is_folder in ordered)


def move(source: str, destination: str, account: Account, accounts: Accounts) -> Entry:
    """Rename `source`, replacing a file that is at `destination`. Across file systems it is copied, then removed."""
    with said_of(source):
        os.lstat(source)
    make_parents(destination, account)
    try:
        os.rename(source, destination)  # noqa: PTH104
    except OSError as exc:
        # Also for folders of the image: the overlay cannot rename what is in its lower layer.
        if exc.errno != errno.EXDEV:
            raise refusal_of(exc, destination) from exc
        with said_of(destination):
            _copy(source, destination)
        remove(source)
    return entry_of(destination, accounts)


def _copy(source: str, destination: str) -> None:
    """Copy a file, link or folder with its mode, times and owner."""
    facts = os.lstat(source)
    if stat.S_ISDIR(facts.st_mode):
        os.mkdir(destination, 0o700)  # noqa: PTH102
        for name in os.listdir(source):  # noqa: PTH208
            _copy(f"{source}/{name}", f"{destination}/{name}")
    elif stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode):
        shutil.copyfile(source, destination, follow_symlinks=False)
    else:
        return  # sockets and FIFOs mean nothing without who holds them
    if os.geteuid() == 0:
        os.lchown(destination, facts.st_uid, facts.st_gid)
    shutil.copystat(source, destination, follow_symlinks=False)


def remove(path: str) -> None:
    """Remove `path` and what is below it. A missing path is success."""
    if path == "/":
        raise bad_path("/ cannot be removed", "path")
    with said_of(path), contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, onerror=_forgive_missing)
        else:
            os.unlink(path)  # noqa: PTH108


def _forgive_missing(
    _function: object, _path: object, error: tuple[type[BaseException], BaseException, object]
) -> None:
    """Whatever somebody else removed at the same time is removed."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]
