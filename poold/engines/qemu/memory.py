"""A snapshot's memory, held once for all the machines that are restored from it.

Each machine maps it privately, so its writes are its own. QEMU insists on opening the file for writing all the
same, and a file that hostile code could write to would be every later machine's memory. So the memory is in a
memfd that is sealed against every write: nobody can change it any more, not even root.
"""

import fcntl
import os
from pathlib import Path

from poold.engines import sparse

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


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
