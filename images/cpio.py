"""Archives in the form that the kernel unpacks as its initramfs: cpio "newc", uncompressed.

Written here because it is a page of code, and because it needs neither root nor a device node on disk to put one into
the archive. Every number that does not matter to the kernel is fixed, so equal entries give equal bytes.
"""

import stat
from collections.abc import Iterable
from dataclasses import dataclass

_MAGIC = b"070701"
_TRAILER = "TRAILER!!!"


@dataclass(frozen=True)
class Entry:
    """A file, folder, link or device. `mode` includes its type, as in `stat`; parents come before children."""

    name: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def folder(name: str) -> Entry:
    return Entry(name, stat.S_IFDIR | 0o755)


def file(name: str, data: bytes, *, mode: int = 0o644) -> Entry:
    return Entry(name, stat.S_IFREG | mode, data)


def link(name: str, target: str) -> Entry:
    return Entry(name, stat.S_IFLNK | 0o777, target.encode())


def character_device(name: str, major: int, minor: int) -> Entry:
    return Entry(name, stat.S_IFCHR | 0o600, device=(major, minor))


def archive(entries: Iterable[Entry]) -> bytes:
    """Return the archive of `entries`, in their order."""
    records = [_record(number, entry) for number, entry in enumerate(entries, start=1)]
    return b"".join([*records, _record(0, Entry(_TRAILER, 0))])


def _record(inode: int, entry: Entry) -> bytes:
    name = entry.name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (
        inode,
        entry.mode,
        0,  # uid
        0,  # gid
        links,
        0,  # mtime
        len(entry.data),
        0,  # device of the file system, major
        0,  # and minor
        *entry.device,
        len(name),
        0,  # checksum, unused in this format
    )
    header = _MAGIC + b"".join(b"%08x" % field for field in fields)
    return _padded(header + name) + _padded(entry.data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
