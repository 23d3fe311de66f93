"""How often: a token bucket for each key and each address without one, and the count of wrong keys. No I/O."""

import ipaddress
import math
from collections import OrderedDict
from dataclasses import dataclass

BURST = 2  # seconds' worth of requests that may come at once
MAX_BUCKETS = 100_000
WRONG_KEYS = 10  # from one address in a window
WINDOW_S = 60.0
BLOCKED_S = 60.0
MAX_ADDRESSES = 10_000


@dataclass(slots=True)
class Bucket:
    """`rate` requests a second, and `BURST` seconds' worth of them at once."""

    rate: int
    tokens: float
    at_s: float

    def take(self, now_s: float) -> bool:
        """Whether one more request may be made now."""
        limit = self.rate * BURST
        self.tokens = min(limit, self.tokens + (now_s - self.at_s) * self.rate)
        self.at_s = now_s
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    @property
    def wait_s(self) -> int:
        """Whole seconds until there is a token again."""
        return max(1, math.ceil((1 - self.tokens) / self.rate))

    def headers(self) -> list[tuple[bytes, bytes]]:
        """`Reset` is when the bucket is full again, in seconds."""
        limit = self.rate * BURST
        return [
            (b"ratelimit-limit", b"%d" % limit),
            (b"ratelimit-remaining", b"%d" % self.tokens),
            (b"ratelimit-reset", b"%d" % math.ceil((limit - self.tokens) / self.rate)),
        ]


class Buckets:
    """One for each key, or each address. Those that were not used for longest are forgotten: they are full by then."""

    def __init__(self, most: int = MAX_BUCKETS) -> None:
        self._most = most
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def of(self, whose: str, rate: int, now_s: float) -> Bucket:
        bucket = self._buckets.get(whose)
        if bucket is None:
            bucket = self._buckets[whose] = Bucket(rate, rate * BURST, now_s)
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(whose)
            bucket.rate = rate  # the key's record may have changed
        return bucket


@dataclass(slots=True)
class _Wrong:
    began_s: float
    count: int
    until_s: float = 0.0  # refused until then


class WrongKeys:
    """Counts wrong keys by address, and says how long an address with too many has to wait."""

    def __init__(self, most: int = MAX_ADDRESSES) -> None:
        self._most = most
        self._by_address: OrderedDict[str, _Wrong] = OrderedDict()

    def add(self, address: str, now_s: float) -> int:
        """One more from there. Seconds to wait, or 0 while there were not too many."""
        where = network_of(address)
        wrong = self._by_address.get(where)
        if wrong is None or (now_s - wrong.began_s >= WINDOW_S and now_s >= wrong.until_s):
            wrong = self._by_address[where] = _Wrong(now_s, 0)
        self._by_address.move_to_end(where)
        if len(self._by_address) > self._most:
            self._by_address.popitem(last=False)
        wrong.count += 1
        if wrong.count > WRONG_KEYS and now_s >= wrong.until_s:
            wrong.until_s = now_s + BLOCKED_S
        return max(0, math.ceil(wrong.until_s - now_s))


def network_of(address: str) -> str:
    """Who is counted together: an address, and in IPv6 the network that one customer usually has."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed.packed[:8] + bytes(8), 64)))
    return str(parsed)
