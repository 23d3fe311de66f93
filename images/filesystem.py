"""A folder as a read-only ext4 file, made without mounting anything.

The same tree and key give the same bytes: identifiers come from the key, times from the tree.
"""

import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from images.errors import ImageError
from images.programs import run

ROOT = "rootfs.ext4"
LABEL = "warren-root"

_BLOCK = 4096
_INODE = 256
_MIB = 1024 * 1024

# ext4 keeps the inodes before this one for itself, except that 2 is the root folder. This one is lost+found.
_FIRST_INODE = 11

# Room for what is not counted: block and inode bitmaps, group descriptors, indexes of large folders and files.
_SLACK_PERCENT = 3
_SLACK_BYTES = 4 * _MIB

# Nothing is ever written to it: a journal would be megabytes of zeros that each mount has to look at, and a file system
# that is never resized needs no room reserved for growth.
_FEATURES = "^has_journal,^resize_inode,^metadata_csum,uninit_bg,dir_index,extent"


def make_filesystem(tree: Path, path: Path, *, key: str, limit_mb: int) -> None:
    """Write the file system with the content of `tree` to `path`. Raises `ImageError` if it is over `limit_mb`."""
    stats = list(_stats(tree))
    count, size = size_for(stats)
    if size > limit_mb * _MIB:
        raise ImageError(
            f"the root file system takes {size // _MIB} MB and size_mb allows {limit_mb}",
            hint="leave packages out of image.toml, or raise size_mb there",
        )
    identity = str(uuid.UUID(key[:32]))
    newest = max(1, int(max(info.st_mtime for info in stats)))  # 0 would mean to mke2fs: as the clock says
    settings = {
        "-t": "ext4",
        "-b": str(_BLOCK),
        "-I": str(_INODE),
        "-N": str(count + _FIRST_INODE),
        "-m": "0",
        "-O": _FEATURES,
        "-L": LABEL,
        "-U": identity,
        "-E": f"hash_seed={identity},root_owner=0:0,lazy_itable_init=0,nodiscard",
        "-d": str(tree),
    }
    flags = [word for setting in settings.items() for word in setting]
    clock = {"E2FSPROGS_FAKE_TIME": str(newest)}
    run(["mke2fs", "-q", "-F", *flags, path, f"{size // 1024}k"], env=clock)
    _forget_when(path, count, newest, clock)


def size_for(stats: Iterable[os.stat_result]) -> tuple[int, int]:
    """Return how many inodes and bytes files with these facts take, the bytes with a little to spare."""
    inodes = {info.st_ino: info for info in stats}
    kept = [info for info in inodes.values() if stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)]
    blocks = sum(-(-info.st_size // _BLOCK) for info in kept)
    used = blocks * _BLOCK + (len(inodes) + _FIRST_INODE) * _INODE
    size = used + used * _SLACK_PERCENT // 100 + _SLACK_BYTES
    return len(inodes), -(-size // _MIB) * _MIB


def _forget_when(path: Path, count: int, time: int, clock: dict[str, str]) -> None:
    """Set the two times of each inode that mke2fs took from the folder and that no program can set there."""
    commands = path.with_suffix(".times")
    # The root, lost+found, and then the others in the order in which they were added.
    inodes = [2, *range(_FIRST_INODE, _FIRST_INODE + count)]
    commands.write_text("".join(f"sif <{inode}> {field} @{time}\n" for inode in inodes for field in ("atime", "ctime")))
    run(["debugfs", "-w", "-f", commands, path], env=clock)
    commands.unlink()


def _stats(tree: Path) -> Iterator[os.stat_result]:
    yield tree.lstat()
    for path in tree.rglob("*"):
        yield path.lstat()
