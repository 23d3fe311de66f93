"""The sockets of a machine's proxy, in this thread's namespace. Who owns the namespace opens them: a proxy may not."""

import errno
import socket
from contextlib import ExitStack

from poold.net.addresses import EXPLICIT, HOST_ADDRESS, NAMES, PACKETS, TRANSPARENT
from poold.net.faults import translated
from poold.net.nflog import open_nflog
from poold.slots import ProxySockets

BACKLOG = 256


def proxy_sockets() -> ProxySockets:
    """Open them all, or none."""
    with ExitStack() as undo:
        sockets = ProxySockets(
            explicit=undo.enter_context(_listening(EXPLICIT, socket.SOCK_STREAM)),
            transparent=undo.enter_context(_listening(TRANSPARENT, socket.SOCK_STREAM)),
            names_udp=undo.enter_context(_listening(NAMES, socket.SOCK_DGRAM)),
            names_tcp=undo.enter_context(_listening(NAMES, socket.SOCK_STREAM)),
            packets=undo.enter_context(open_nflog(PACKETS)),
        )
        undo.pop_all()
    return sockets


def _listening(port: int, kind: socket.SocketKind) -> socket.socket:
    with translated("listen at", f"{HOST_ADDRESS}:{port}", {errno.EADDRINUSE: "another proxy has it"}):
        listener = socket.socket(socket.AF_INET, kind | socket.SOCK_NONBLOCK)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(kind == socket.SOCK_STREAM))
            listener.bind((HOST_ADDRESS, port))
            if kind == socket.SOCK_STREAM:
                listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener
