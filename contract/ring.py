"""Which host an id belongs to: rendezvous hashing. Whoever has the same hosts comes to the same answer, with no table.

Each host draws a number for each id, and the highest is the id's owner. A host that joins takes only the ids for which
it draws the highest, one that leaves gives up only its own; every other id stays where it was.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

DRAWN_BITS = 52  # as many as a float tells apart, so that no number becomes 0 or 1
MAX_NAME_BYTES = 64  # of a key for blake2b
MAX_DRAWS = 20_000  # for one placement: a tenth of a second, when hardly a host has room
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
    """The first of the ranking, or None if there is no host with a weight."""
    name = key.encode()
    drawn, host = max(((_draw(name, host, weight), host) for host, weight in weights.items()), default=(0.0, ""))
    return host if drawn > 0 else None


def place(new_id: Callable[[], str], weights: Mapping[str, float], rooms: Mapping[str, Room]) -> str | None:
    """A new id for one of the hosts in `rooms`, which may take it: of two, the one whose owner has more room left.

    Ids are drawn until two have such an owner: whoever looks for one later ranks all hosts. None if no host has room.
    """
    fit = {host: weights[host] for host, room in rooms.items() if room.left > 0 and weights.get(host, 0) > 0}
    # The heaviest first: when few hosts have room, most ids are another's, and that is soon seen.
    others = sorted(((weight, host) for host, weight in weights.items() if host not in fit), reverse=True)
    drawn: list[tuple[float, str]] = []
    for _ in range(MAX_DRAWS if fit else 0):
        name = new_id()
        host = _owner_in(name.encode(), fit, others)
        if host is not None:
            drawn.append((rooms[host].left, name))
        if len(drawn) == CHOICES:
            break
    return max(drawn)[1] if drawn else None


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


def _owner_in(key: bytes, fit: Mapping[str, float], others: Sequence[tuple[float, str]]) -> str | None:
    """The owner of `key` among all hosts, if it is one of `fit`."""
    best = max((_draw(key, host, weight), host) for host, weight in fit.items())
    return None if any((_draw(key, host, weight), host) > best for weight, host in others) else best[1]


def _draw(key: bytes, host: str, weight: float) -> float:
    if weight <= 0:
        return 0.0
    name = host.encode()
    if len(name) > MAX_NAME_BYTES:
        name = hashlib.blake2b(name).digest()
    return score(int.from_bytes(hashlib.blake2b(key, digest_size=8, key=name).digest()), weight)


def score(number: int, weight: float) -> float:
    """What a host of this weight makes of 64 random bits.

    Logarithmic: of two hosts, each has the higher score as often as its part of their weights says.
    """
    return weight / -math.log(((number >> (64 - DRAWN_BITS)) + 0.5) / (1 << DRAWN_BITS))
