"""The process from which all proxies of a host are made: it has loaded their program, so that one is a fork away.

    python -m poold.egress.zygote FD FOLDER

A proxy made this way starts in milliseconds and shares most of its memory with all others. The zygote does what poold
asks for on the socket `FD` and ends when poold does; the proxies go on. `FOLDER` says to people whose it is.

One request and one answer, both a datagram of JSON. The request carries the proxy's sockets, in the order of `SOCKETS`.
"""

import ctypes
import gc
import os
import resource
import select
import signal
import socket
import sys
from typing import Any

import orjson

from poold.egress.proxy.process import Sockets, run

SOCKETS = ("explicit", "transparent", "dns_udp", "dns_tcp", "packets", "control")
REQUEST_BYTES = 4096
OPEN_FILES = 16_384  # two for each connection, and some
FILE_BYTES = 8 << 20  # it writes to no file but its log, which ends there
ADDRESS_SPACE = 1 << 30  # many times what it needs
THREADS = 16  # and processes, of its user: its own, and those that resolve names
PR_SET_NO_NEW_PRIVS = 38
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15


def main() -> None:
    """Serve until poold hangs up."""
    poold = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects proxies that end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, for poold
    # What is there now is never looked at again by the collector of any proxy: its pages stay shared.
    gc.collect()
    gc.freeze()
    while True:
        try:
            asked, fds, _, _ = socket.recv_fds(poold, REQUEST_BYTES, len(SOCKETS))
        except ConnectionResetError:  # it was killed, and had not read our last answer
            return
        if not asked or _has_left(poold):
            return
        ready, says_so = os.pipe()
        pid = os.fork()
        if pid == 0:
            poold.close()
            os.close(ready)
            _become(orjson.loads(asked), fds, says_so)
        for fd in (*fds, says_so):
            os.close(fd)
        # Until it has its own user nobody would find it: whoever gives it up at once has to.
        os.read(ready, 1)
        os.close(ready)
        poold.send(orjson.dumps({"pid": pid}))


def _has_left(poold: socket.socket) -> bool:
    """Whether poold is gone. What it asked for last is nobody's wish: its successor may have swept already."""
    poll = select.poll()
    poll.register(poold, 0)
    return bool(poll.poll(0))


def _become(asked: dict[str, Any], fds: list[int], says_so: int) -> None:
    """Be the proxy that was asked for; `says_so` is closed when it has its own user. Does not return."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _drop_rights(asked["uid"], asked["slot"])
        os.close(says_so)
        sockets = {name: socket.socket(fileno=fd) for name, fd in zip(SOCKETS, fds, strict=True)}
        control = sockets.pop("control")
        run(Sockets(**sockets), control, asked["slot"])
        code = 0
    except BaseException as error:
        print(f"proxy of slot {asked.get('slot')}: {error!r}", file=sys.stderr, flush=True)  # noqa: T201
    finally:
        os._exit(code)  # nothing of the zygote's is ours to clean up


def _drop_rights(uid: int, slot: int) -> None:
    """Nobody in particular from now on, for good. No other process of this user is there."""
    os.chdir("/")
    os.umask(0o077)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = min(OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_NPROC, (THREADS, THREADS))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((PR_SET_NO_NEW_PRIVS, 1), (PR_SET_DUMPABLE, 0)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {option}")
    libc.prctl(PR_SET_NAME, f"egress-{slot}".encode(), 0, 0, 0)


if __name__ == "__main__":
    main()
