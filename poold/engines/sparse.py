"""Sparse files: copied by their data only, as clones where the file system can."""

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path

FICLONE = 0x40049409  # _IOW(0x94, 9, int): share the blocks of another file (btrfs, XFS, bcachefs)


def clone(source: Path, target: Path, *, mode: int, uid: int) -> None:
    """Make `target` a copy of `source` that belongs to `uid`. Blocks. A failure leaves no file behind."""
    fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchown(fd, uid, uid)
        copy(source, fd)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def share(source: Path, target: Path) -> None:
    """Let `target` be the file `source`, which nobody writes to any more: by another name, or as a copy. Blocks."""
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
            raise
        clone(source, target, mode=stat.S_IMODE(source.stat().st_mode), uid=os.geteuid())


def copy(source: Path, target_fd: int) -> None:
    """Copy `source` into the empty file `target_fd`. Blocks."""
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # most file systems cannot; then the data is copied
            fcntl.ioctl(target_fd, FICLONE, fd)
            return
        size = os.fstat(fd).st_size
        os.ftruncate(target_fd, size)
        for start, end in data_ranges(fd, size):
            _copy_range(fd, target_fd, start, end)
    finally:
        os.close(fd)


def data_ranges(fd: int, size: int) -> list[tuple[int, int]]:
    """Where a sparse file has data, as (start, end) pairs."""
    ranges = []
    offset = 0
    while offset < size:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # only a hole is left
        offset = os.lseek(fd, start, os.SEEK_HOLE)
        ranges.append((start, offset))
    return ranges


def _copy_range(fd: int, target_fd: int, start: int, end: int) -> None:
    offset = start
    os.lseek(target_fd, start, os.SEEK_SET)
    while offset < end:
        copied = os.sendfile(target_fd, fd, offset, end - offset)
        if copied == 0:
            raise OSError("the file became shorter while it was copied")
        offset += copied


def sync(path: Path) -> None:
    """Wait until the file or folder `path` is on the disk. Blocks."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
