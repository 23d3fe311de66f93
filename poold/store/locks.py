"""Locks on files, for all processes that share a folder. Held for a comparison and a rename, never for a transfer."""

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from poold.store.errors import Unreachable

COUNT = 256  # keys share them, so that their files are few and never need to be removed
POLL_S = 0.002
# Over NFS the kernel makes a process's lock of each of ours: its threads have to be kept apart by ourselves.
_THREADS = [threading.Lock() for _ in range(COUNT)]


@contextlib.contextmanager
def locked(folder: Path, key: str, *, until: float) -> Iterator[None]:
    """Nobody else has `key` during the block. Raises `Unreachable` if somebody does at `until`, of the monotonic clock.

    Blocks. A lock ends with its process, whatever ends that.
    """
    number = hashlib.sha256(key.encode()).digest()[0]
    if not _THREADS[number].acquire(timeout=max(0.0, until - time.monotonic())):
        raise _busy(key)
    try:
        descriptor = os.open(folder / f"{number:02x}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _wait_for(descriptor, key, until)
            yield
        finally:
            os.close(descriptor)
    finally:
        _THREADS[number].release()


def _wait_for(descriptor: int, key: str, until: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise _busy(key) from None
            time.sleep(POLL_S)
        else:
            return


def _busy(key: str) -> Unreachable:
    return Unreachable(f"the lock of {key!r} in the store's folder was not free in time; nothing was changed")
