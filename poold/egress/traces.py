"""What there is of a proxy on this host: the file by which it is reached, the processes of its user, its name."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from poold import processes
from poold.egress.forks import UID_OFFSET
from poold.errors import NetError

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextlib.contextmanager
def listening(path: Path, uid: int) -> Iterator[socket.socket]:
    """The file by which a proxy is reached. It is that of the proxy's user, which says later whose it was."""
    with contextlib.ExitStack() as stack:
        try:
            path.unlink(missing_ok=True)
            control = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            with short(path) as name:
                control.bind(name)
            os.chown(path, uid, uid)
            control.listen(4)
        except OSError as error:  # a full disk, no more files
            raise NetError("make", str(path), hint=str(error)) from error
        yield control


@contextlib.contextmanager
def short(path: Path) -> Iterator[str]:
    """A short name for `path` during the block: a unix socket's name may have 107 bytes only."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


async def end_all_of(uid: int) -> None:
    """Nobody runs as `uid` any more, if that is a proxy's user. Raises `HostFault` if somebody cannot be ended."""
    if uid >= UID_OFFSET:
        try:
            for pid in await asyncio.to_thread(processes.of_user, uid):
                await processes.end(pid)
        except OSError as error:  # no more files
            raise NetError("end", f"the processes of user {uid}", hint=str(error)) from error


def name_of(pid: int) -> str:
    """What the proxy is called in the ledger: no other process of this host is, or ever was."""
    began = "0"
    with contextlib.suppress(OSError, IndexError):
        # In the kernel's own count, since it was booted: no other has had this number then.
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{_BOOT.read_text().strip()}.{pid}.{began}"
