"""Which host an id belongs to: rendezvous hashing. Whoever has the same hosts comes to the same answer, with no table.

Each host draws a number for each id, and the highest is the id's owner. A host that joins takes only the ids for which
it draws the highest, one that leaves gives up only its own; every other id stays where it was.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

SCALE = 1 << 64
CHOICES = 2  # with two, the fullest host is barely fuller than the others; more gain next to nothing


@dataclass(frozen=True)
class Room:
    """What a host has for machines, and what is left of it, in any one unit."""

    all: int
    free: int

    @property
    def left(self) -> float:
        """The part that is free. A host without any room has none left."""
        return self.free / self.all if self.all > 0 else 0.0


def ranked(key: str, weights: Mapping[str, float]) -> list[str]:
    """The hosts for `key`, its owner first. A host of twice the weight owns twice as many ids; weight 0 owns none."""
    name = key.encode()
    drawn = [(_draw(name, host, weight), host) for host, weight in weights.items()]
    return [host for _, host in sorted(drawn, reverse=True)]


def owner(key: str, weights: Mapping[str, float]) -> str | None:
    """The first of the ranking, or None if there is no host."""
    name = key.encode()
    return max(weights, key=lambda host: (_draw(name, host, weights[host]), host), default=None)


def place(new_id: Callable[[], str], weights: Mapping[str, float], rooms: Mapping[str, Room]) -> str | None:
    """A new id for one of the hosts in `rooms`, which may take it: of two, the one whose owner has more room left.

    Ids are drawn until two have such an owner: whoever looks for one later ranks all hosts. None if no host has room.
    """
    fit = {host for host, room in rooms.items() if room.left > 0 and weights.get(host, 0) > 0}
    if not fit:
        return None
    drawn: list[tuple[float, str]] = []
    while len(drawn) < CHOICES:
        name = new_id()
        host = owner(name, weights)
        if host in fit:
            drawn.append((rooms[host].left, name))
    return max(drawn)[1]


def spread(keys: Sequence[str], weights: Mapping[str, float]) -> dict[str, float]:
    """The share of `keys` that each host owns, as a part of what its weight asks for: 1.0 is exactly that."""
    counts = dict.fromkeys(weights, 0)
    for key in keys:
        found = owner(key, weights)
        if found is not None:
            counts[found] += 1
    total = sum(weights.values())
    return {
        host: counts[host] / (len(keys) * weight / total) for host, weight in weights.items() if weight > 0 and keys
    }


def _draw(key: bytes, host: str, weight: float) -> float:
    """Logarithmic: of two hosts, each draws the higher number as often as its part of their weights says."""
    if weight <= 0:
        return 0.0
    number = int.from_bytes(hashlib.blake2b(key, digest_size=8, key=host.encode()[:64]).digest())
    return weight / -math.log((number + 0.5) / SCALE)
