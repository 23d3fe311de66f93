"""The tap: a network card whose cable ends in a file. There is no rtnetlink for it, only `/dev/net/tun`."""

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from poold.net.faults import translated

_TUN = "/dev/net/tun"

_TUNSETIFF = 0x400454CA
_TUNSETPERSIST = 0x400454CB
_TUNSETOWNER = 0x400454CC

_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_IFF_VNET_HDR = 0x4000

_NO_TUN = "the kernel's tun driver is needed: modprobe tun"


@contextmanager
def new_tap(name: str, *, uid: int) -> Iterator[None]:
    """Make the tap `name` in this thread's namespace and hold it open during the block. It stays, for `uid` to open.

    Bring it up inside the block. Its queue is only set up by coming up while somebody holds the other end; else that
    happens when the monitor opens it, as a change that the kernel handles up to a second late, losing what is sent.
    """
    tun = open_tap(name)
    try:
        with translated("make", name):
            fcntl.ioctl(tun, _TUNSETOWNER, uid)
            fcntl.ioctl(tun, _TUNSETPERSIST, 1)
        yield
    finally:
        os.close(tun)


def open_tap(name: str) -> int:
    """Return the other end of the tap `name` in this thread's namespace; it is made if there is none."""
    with translated("open", _TUN, {errno.ENOENT: _NO_TUN, errno.ENXIO: _NO_TUN, errno.ENODEV: _NO_TUN}):
        tun = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        with translated("attach to", name, {errno.EBUSY: "another machine holds it"}):
            fcntl.ioctl(tun, _TUNSETIFF, tap_request(name))
    except BaseException:
        os.close(tun)
        raise
    return tun


def tap_request(name: str) -> bytes:
    """Return the `struct ifreq` of a tap with one queue and virtio headers; one may also open it without them."""
    return struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR)
