"""Network namespaces: entering them, making them, and pinning them to a file.

A namespace belongs to a thread, so all of this is for worker threads; the event loop's thread never leaves home.
Python 3.11 has neither `unshare` nor `setns`, hence ctypes. A pin is a bind mount: it keeps the namespace when poold is
killed. Its folder needs no mount of its own, because unlinking the file also drops the copies of the mount that other
mount namespaces may have.
"""

import ctypes
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from poold.errors import NetError
from poold.net.faults import translated

_OWN = Path("/proc/thread-self/ns/net")

_CLONE_NEWNET = 0x40000000
_MS_BIND = 4096
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8

_NO_NAMESPACE = {
    errno.EINVAL: "the kernel lacks CONFIG_NET_NS",
    errno.ENOSPC: "raise /proc/sys/user/max_net_namespaces",
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


class StrandedError(NetError):
    """This thread could not return to the host's namespace. It must do nothing more, not even start another thread."""


@contextmanager
def fresh() -> Iterator[None]:
    """Be in a new, empty namespace during the block. After the block it is gone, unless it was pinned."""

    def leave() -> None:
        with translated("make", "a network namespace", _NO_NAMESPACE):
            _check(_libc.unshare(_CLONE_NEWNET))

    with _away(leave):
        yield


@contextmanager
def inside(pin: Path) -> Iterator[None]:
    """Be in the namespace that `pin` holds during the block."""

    def leave() -> None:
        with translated("enter", pin, {errno.EINVAL: "it is a file, but pins no namespace"}):
            namespace = os.open(pin, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _check(_libc.setns(namespace, _CLONE_NEWNET))
            finally:
                os.close(namespace)

    with _away(leave):
        yield


def socket_in(pin: Path) -> socket.socket:
    """Return a non-blocking TCP socket of the namespace that `pin` holds. It keeps the namespace until it is closed."""
    with inside(pin), translated("open a socket in", pin):
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


def pin_to(pin: Path) -> None:
    """Keep this thread's namespace by the new file `pin`. If this raises, it made no file."""
    with translated("pin a network namespace to", pin):
        os.close(os.open(pin, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        try:
            _check(_libc.mount(bytes(_OWN), bytes(pin), b"", _MS_BIND, None))
        except OSError:
            pin.unlink()
            raise


def unpin(pin: Path) -> None:
    """Remove `pin`, and with it the namespace once no process and no socket is in it. Succeeds if there is none."""
    with translated("remove", pin):
        while is_pin(pin):
            _check(_libc.umount2(bytes(pin), _MNT_DETACH | _UMOUNT_NOFOLLOW))
        pin.unlink(missing_ok=True)


def is_pin(path: Path) -> bool:
    """Say whether a namespace is mounted on `path`: a daemon that is killed while it pins leaves an empty file."""
    try:
        return path.lstat().st_dev == _OWN.stat().st_dev
    except FileNotFoundError:
        return False


@contextmanager
def _away(leave: Callable[[], None]) -> Iterator[None]:
    """Let this thread `leave` its namespace for the block, and bring it home after it."""
    if threading.current_thread() is threading.main_thread():
        raise RuntimeError("the main thread must stay in the host's network namespace")
    with translated("open", _OWN):
        home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        leave()
        try:
            yield
        finally:
            _return(home)
    finally:
        os.close(home)


def _return(home: int) -> None:
    try:
        _check(_libc.setns(home, _CLONE_NEWNET))
    except OSError as exc:
        raise StrandedError("return from", "a network namespace", hint=str(exc)) from exc


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
