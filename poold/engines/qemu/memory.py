"""A snapshot's memory, held once for all the machines that are restored from it.

Each machine maps it privately, so its writes are its own. QEMU insists on opening the file for writing all the
same, and a file that hostile code could write to would be every later machine's memory. So the memory is in a
memfd that is sealed against every write: nobody can change it any more, not even root.
"""

import asyncio
import fcntl
import os
from pathlib import Path

from poold.engines import sparse
from poold.lifetimes import finish

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
MOST = 8  # shapes whose memory is held, some 100 MB each; a machine that runs holds its own in any case


# A file by any of its names: a machine has its snapshot's memory under a name of its own. A number of a file that is
# gone may be given to another one, hence the time and the size.
Key = tuple[int, int, int, int]


class Memories:
    """The sealed memories in use, the most recently used last."""

    def __init__(self) -> None:
        self._held: dict[Key, int] = {}
        self._turn = asyncio.Lock()

    async def open(self, path: Path) -> int:
        """An open file with the content of `path`, sealed. It is the caller's to close."""
        async with self._turn:
            key = await asyncio.to_thread(_key, path)
            fd = self._held.pop(key, None)
            if fd is None:
                fd = await finish(asyncio.to_thread(load_sealed, path), undo=os.close)
            self._held[key] = fd
            while len(self._held) > MOST:
                os.close(self._held.pop(next(iter(self._held))))
            return os.dup(fd)

    def close(self) -> None:
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()


def _key(path: Path) -> Key:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def load_sealed(path: Path) -> int:
    """The content of `path` in a sealed memfd. Blocks; holes stay holes and cost nothing."""
    fd = os.memfd_create(f"warren:{path.parent.name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        sparse.copy(path, fd)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd
