"""Leases, hosts and what is seen of them, for tests."""

from contract.hosts import Host
from contract.ring import Room
from poold.lease.terms import MS, Seen
from poold.lease.written import Lease, Taken, first

HOLDER = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2
BOOT = "11111111-2222-3333-4444-555555555555"
HOLD_MS = 10_000


def host(name: str, *, memory_mb: int = 1024, draining: bool = False) -> Host:
    room = Room(memory_mb, memory_mb)
    return Host(name, "http://127.0.0.1:7070", memory_mb=room, slots=Room(4, 4), draining=draining)


def lease(name: str = "a", *, epoch: int = 3, root: int = 2, holder: str = HOLDER, **changes: object) -> Lease:
    made = first(name, holder, BOOT, HOLD_MS, host(name), epoch=epoch, root=root or epoch)
    return Lease(**{**vars(made), "root": root, **changes})  # type: ignore[arg-type]


def taken(root: int = 1, last: int = 1, by: str = "b", by_epoch: int = 1) -> Taken:
    return Taken(root, last, by, by_epoch)


def seen(of: Lease, at_ns: int = 0, tag: str = "1") -> Seen:
    return Seen(tag, of, at_ns)


HOLD_NS = HOLD_MS * MS
