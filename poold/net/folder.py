"""The folder of the pins: one file for each slot, named by its number.

All of this blocks, and all but `claimed` is for the worker thread.
"""

import errno
import fcntl
import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

from poold.errors import NetError
from poold.net.addresses import TAP
from poold.net.faults import translated
from poold.net.namespace import fresh, is_pin, pin_to, unpin
from poold.net.netlink import wire
from poold.net.nft import run_nft
from poold.net.rules import RULES
from poold.net.tap import new_tap
from poold.slots import Slot

# A new namespace takes its IPv4 settings from the host's, which may well forward.
_SETTINGS = {
    "ipv4/ip_forward": "0",
    # The kernel would answer one guest six times and then once a second; the rules have their own limit.
    "ipv4/icmp_ratelimit": "0",
    # Absent from a kernel that was started without IPv6.
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
}
# How long the kernel remembers what is over; it would be minutes, of which a guest could make many. There once the
# rules are: they load what reads these.
_FORGET_S = {
    "netfilter/nf_conntrack_tcp_timeout_time_wait": "5",
    "netfilter/nf_conntrack_tcp_timeout_close": "2",
    "netfilter/nf_conntrack_tcp_timeout_close_wait": "10",
    "netfilter/nf_conntrack_tcp_timeout_syn_recv": "10",
    "netfilter/nf_conntrack_udp_timeout": "5",
}


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Have `folder` for this process alone during the block; it is made if it is not there, and stays."""
    with translated("claim", folder, {errno.EWOULDBLOCK: "another poold uses it"}):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
    try:
        yield
    finally:
        os.close(lock)


def make(slot: Slot) -> None:
    """Make the slot's namespace with all that belongs into it. The pin comes last: what is pinned is complete."""
    with fresh():
        for name, value in _SETTINGS.items():
            _set(Path("/proc/sys/net") / name, value)
        with new_tap(TAP, uid=slot.uid):
            wire(TAP)
        run_nft(RULES)
        for name, seconds in _FORGET_S.items():
            _set(Path("/proc/sys/net") / name, seconds)
        pin_to(slot.netns)


def remake(slot: Slot) -> None:
    """Give the slot a new namespace, whatever is left of the old one. Nothing of a former guest remains in it."""
    unpin(slot.netns)
    make(slot)


def pinned(folder: Path) -> frozenset[int]:
    """Return the numbers of the slots that have a namespace."""
    return frozenset(number for number in _numbers(folder) if is_pin(folder / str(number)))


def sweep(folder: Path, keep: Container[int] = ()) -> None:
    """Remove every pin, and every file that was to become one, but those of the slots to `keep`.

    Files with other names are not ours and stay. One that cannot be removed does not spare the others.
    """
    failed: NetError | None = None
    for number in _numbers(folder):
        if number not in keep:
            try:
                unpin(folder / str(number))
            except NetError as exc:
                failed = exc
    if failed is not None:
        raise failed


def _numbers(folder: Path) -> list[int]:
    with translated("list", folder):
        names = [path.name for path in folder.iterdir()]
    # `str(int(name))` keeps out the likes of "007" and "²", which are no names of ours.
    return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)


def _set(setting: Path, value: str) -> None:
    with translated("write", setting):
        try:
            setting.write_text(value)
        except FileNotFoundError:
            if "ipv6" not in setting.parts:
                raise
