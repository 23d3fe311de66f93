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
from poold.files import short_name

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextlib.contextmanager
def listening(path: Path, uid: int) -> Iterator[socket.socket]:
    """The file by which a proxy is reached. It is that of the proxy's user, which says later whose it was."""
    with contextlib.ExitStack() as stack:
        try:
            path.unlink(missing_ok=True)
            control = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            with short_name(path) as name:
                control.bind(name)
            os.chown(path, uid, uid)
            control.listen(4)
        except OSError as error:  # a full disk, no more files
            raise NetError("make", str(path), hint=str(error)) from error
        yield control


async def end_all_of(uid: int) -> None:
    """Nobody runs as `uid` any more, if that is a proxy's user: also those that began while others were ended.

    Raises `HostFault` if somebody cannot be ended.
    """
    ended: set[int] = set()
    if uid >= UID_OFFSET:
        try:
            while pids := set(await asyncio.to_thread(processes.of_user, uid)) - ended:
                for pid in pids:
                    await processes.end(pid)
                ended |= pids
        except OSError as error:  # no more files
            raise NetError("end", f"the processes of user {uid}", hint=str(error)) from error


def name_of(pid: int) -> str:
    """What the proxy is called in the ledger: no other process of this host is, or ever was."""
    return f"{_BOOT.read_text().strip()}.{pid}.{processes.started(pid)}"
