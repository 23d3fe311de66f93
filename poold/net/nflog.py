"""Where the kernel tells of packets that a rule with `log group` saw. The one who reads needs no rights, we do."""

import errno
import os
import socket
import struct

from poold.net.faults import translated

# What is looked at: the heads of a packet, and never what is in it.
COPY_BYTES = 128

_NETLINK_NETFILTER = 12
_SOL_NETLINK = 270
_NETLINK_NO_ENOBUFS = 5
_RECEIVE_BYTES = 1 << 17  # a guest fills this: what does not fit is lost, and the rules count it all the same
_BATCH_BYTES = 1 << 13  # one datagram
_BATCH_PACKETS = 32
_BATCH_CENTISECONDS = 10  # after which a batch is sent that is not full; the kernel's own idea is a second

_CONFIG = (4 << 8) | 1  # NFNL_SUBSYS_ULOG, NFULNL_MSG_CONFIG
_FLAGS = 1 | 4  # a request that wants an answer
_COMMAND, _MODE, _BUFFER, _TIMEOUT, _THRESHOLD = 1, 2, 3, 4, 5
_BIND, _COPY_PACKET = 1, 2

_ADVICE = {
    errno.EINVAL: "the kernel's log of packets is needed: modprobe nfnetlink_log",
    errno.EBUSY: "another proxy has it",
}

_HEAD = struct.Struct("=IHHII")
_ANSWER = struct.Struct("=IHHIIi")
_ATTRIBUTE = struct.Struct("=HH")


def open_nflog(group: int) -> socket.socket:
    """A socket, not blocking, that gets what rules of this thread's namespace log to `group`.

    It goes on to do so in whatever process it is handed to. When more comes than is read, the rest is lost without an
    error. Raises `NetError`, also if somebody else has the group.
    """
    with translated("listen to", f"nflog group {group}", _ADVICE):
        kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        nflog = socket.socket(socket.AF_NETLINK, kind, _NETLINK_NETFILTER)
        try:
            nflog.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
            nflog.setsockopt(_SOL_NETLINK, _NETLINK_NO_ENOBUFS, 1)
            nflog.bind((0, 0))
            _ask(nflog, group)
        except BaseException:
            nflog.close()
            raise
        return nflog


def _ask(nflog: socket.socket, group: int) -> None:
    """Bind to `group`. The kernel has answered when `send` returns."""
    body = struct.pack("!BBH", socket.AF_UNSPEC, 0, group) + b"".join(
        (
            _attribute(_COMMAND, bytes([_BIND])),
            _attribute(_MODE, struct.pack("!IBx", COPY_BYTES, _COPY_PACKET)),
            _attribute(_BUFFER, struct.pack("!I", _BATCH_BYTES)),
            _attribute(_TIMEOUT, struct.pack("!I", _BATCH_CENTISECONDS)),
            _attribute(_THRESHOLD, struct.pack("!I", _BATCH_PACKETS)),
        )
    )
    nflog.send(_HEAD.pack(_HEAD.size + len(body), _CONFIG, _FLAGS, 1, 0) + body)
    *_, error = _ANSWER.unpack_from(nflog.recv(4096))
    if error:
        raise OSError(-error, os.strerror(-error))


def _attribute(kind: int, data: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(data)
    return _ATTRIBUTE.pack(size, kind) + data + bytes(-size % 4)
