"""The one door to the kernel's calls that Python does not offer: mounts, mlockall, prctl, inotify and raw ioctls.

Every function raises `OSError` with the kernel's errno, and nothing else.
"""

import ctypes
import fcntl
import functools
import os
import platform
import socket
import struct
from collections.abc import Callable

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_NOATIME = 1024
MS_MOVE = 8192
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

IN_MODIFY = 0x2
IN_ATTRIB = 0x4
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x01000000
IN_DONT_FOLLOW = 0x02000000
IN_EXCL_UNLINK = 0x04000000
IN_ISDIR = 0x40000000

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_MCL_CURRENT_FUTURE_ONFAULT = 1 | 2 | 4
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_SIOCADDRT = 0x890B
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_SIOCSIFADDR = 0x8916
_SIOCSIFNETMASK = 0x891C
_SIOCSIFMTU = 0x8922
_SIOCSARP = 0x8955
_IFF_UP_RUNNING = 0x1 | 0x40
_RTF_UP_GATEWAY = 0x1 | 0x2
_ATF_COM_PERM = 0x2 | 0x4

_RNDADDENTROPY = 0x40085203
_RNDRESEEDCRNG = 0x5207
_VM_SOCKETS_GET_LOCAL_CID = 0x7B9


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode() if kind else None)
    _checked(_libc().mount(*arguments, ctypes.c_ulong(flags), options.encode() or None), target)


def unmount(target: str, flags: int = 0) -> None:
    _checked(_libc().umount2(target.encode(), flags), target)


def pivot_root(new_root: str, put_old: str) -> None:
    number = _PIVOT_ROOT[platform.machine()]
    _checked(_libc().syscall(ctypes.c_long(number), new_root.encode(), put_old.encode()), new_root)


def become_subreaper() -> None:
    """Inherit the orphans of everything that this process starts, as the first process does."""
    _checked(_libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")


def forbid_new_privileges() -> Callable[[], None]:
    """What a child calls between fork and exec so that no set-user-id program gives it or its children more rights.

    Everything is looked up here, before the fork: afterwards another thread's lock would never be given back.
    """
    prctl = _libc().prctl

    def forbid() -> None:
        _checked(prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")

    return forbid


def lock_touched_memory() -> None:
    """Keep in memory what this process has there or will touch; unused parts of its stacks and heap cost nothing."""
    _checked(_libc().mlockall(_MCL_CURRENT_FUTURE_ONFAULT), "mlockall")


def inotify_open() -> int:
    return _checked(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify")


def inotify_watch(fd: int, path: str, mask: int) -> int:
    return _checked(_libc().inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(mask)), path)


def inotify_forget(fd: int, watch: int) -> None:
    _checked(_libc().inotify_rm_watch(fd, watch), "inotify")


def add_entropy(random_fd: int, seed: bytes) -> None:
    """Mix `seed` into the kernel's pool, count every bit of it, and reseed the generator from the pool now.

    Without the credit and the reseed, two machines restored from one snapshot would go on giving the same numbers.
    """
    fcntl.ioctl(random_fd, _RNDADDENTROPY, struct.pack("ii", len(seed) * 8, len(seed)) + seed)
    fcntl.ioctl(random_fd, _RNDRESEEDCRNG)


def vsock_cid(device_fd: int) -> int:
    """This machine's address on vsock; 0xFFFFFFFF where no device gives it one."""
    answer = fcntl.ioctl(device_fd, _VM_SOCKETS_GET_LOCAL_CID, b"\0" * 4)
    return int.from_bytes(answer, "little")


def _address(text: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(text)).ljust(16, b"\0")


def link_up(name: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16s16x", name.encode())))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", name.encode(), flags | _IFF_UP_RUNNING))


def configure_link(name: str, address: str, netmask: str, mtu: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si12x", name.encode(), mtu))
        fcntl.ioctl(control, _SIOCSIFADDR, struct.pack("16s16s", name.encode(), _address(address)))
        fcntl.ioctl(control, _SIOCSIFNETMASK, struct.pack("16s16s", name.encode(), _address(netmask)))
    link_up(name)


def add_default_route(gateway: str) -> None:
    anywhere = _address("0.0.0.0")  # noqa: S104 - a route, nothing listens
    # struct rtentry: pad, destination, gateway, mask, flags, pads, metric, device, mtu, window, irtt.
    route = struct.pack(
        "@L16s16s16sHhLPhPLLH", 0, anywhere, _address(gateway), anywhere, _RTF_UP_GATEWAY, 0, 0, 0, 0, 0, 0, 0, 0
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCADDRT, route)


def add_neighbour(device: str, address: str, hardware: str) -> None:
    """A permanent ARP entry: a restored machine must not lose its first packets to a lookup."""
    lladdr = struct.pack("=H14s", 1, bytes.fromhex(hardware.replace(":", "")))  # 1: ARPHRD_ETHER
    entry = struct.pack("16s16si16s16s", _address(address), lladdr, _ATF_COM_PERM, b"", device.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSARP, entry)
