"""Open files for a process to inherit: opened here with our rights, closed here once it has them."""

import contextlib
import os
import socket
from pathlib import Path

from poold.files import short_name


class Inherited(contextlib.ExitStack):
    """A block in which files are opened for a child. After it, only the child has them."""

    def __init__(self) -> None:
        super().__init__()
        self.fds: list[int] = []

    def open(self, path: Path, flags: int) -> int:
        return self.keep(os.open(path, flags | os.O_CLOEXEC))

    def keep(self, fd: int) -> int:
        """Take over an open file."""
        self.callback(os.close, fd)
        self.fds.append(fd)
        return fd

    def listen(self, path: Path) -> int:
        """A listening unix socket at `path`, of any length: who connects is answered once the child is up."""
        listener = socket.socket(socket.AF_UNIX)
        fd = self.keep(listener.detach())
        with short_name(path) as short, socket.socket(fileno=os.dup(fd)) as bound:
            bound.bind(short)
            bound.listen(1)
        return fd


def is_listening(path: Path) -> bool:
    """Whether a process listens on the unix socket `path`, also one with a full queue."""
    with short_name(path) as short, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(short)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:
            return True
        return True
