"""A slot: a numbered place on the host for one machine, with its network and its own user id."""

from dataclasses import dataclass
from pathlib import Path
from socket import socket

from poold.errors import NoFreeSlot


@dataclass(frozen=True)
class Slot:
    number: int
    netns: Path  # the file that pins the network namespace
    tap: str
    uid: int  # the user that this slot's machine runs as; no other slot has it


@dataclass(frozen=True)
class ProxySockets:
    """What a machine's proxy listens on, inside its slot. Whoever has them closes them; they keep the namespace."""

    explicit: socket
    transparent: socket
    names_udp: socket
    names_tcp: socket
    packets: socket  # that were dropped

    def close(self) -> None:
        for each in vars(self).values():
            each.close()


class PlainSlots:
    """Numbered places without a network, for machines that need none. Open on any computer, without root."""

    def __init__(self, count: int, *, uid: int) -> None:
        self._count = count
        self._free = [Slot(number, Path("/proc/self/ns/net"), "", uid) for number in reversed(range(count))]

    @property
    def free(self) -> int:
        return len(self._free)

    def take_nowait(self) -> Slot:
        if not self._free:
            raise NoFreeSlot(f"all {self._count} slots of this host are in use")
        return self._free.pop()

    async def give_back(self, slot: Slot) -> None:
        self._free.append(slot)
