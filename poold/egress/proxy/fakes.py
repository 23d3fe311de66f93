"""Addresses that stand for names. A guest is told one of these, and by it the name is known, at any port. No I/O."""

from collections import OrderedDict
from ipaddress import IPv4Address, IPv4Network

RANGE = IPv4Network("198.18.0.0/15")
MAX_NAMES = 4096
_LOOKS_LIKE_A_NETWORK = (0, 255)  # some clients do not connect to addresses that end like this


class Fakes:
    """One address for each name. The name that was not asked for the longest is forgotten when there are too many.

    Addresses are given out in turn: one that was forgotten stands for nothing for a long time, not for another name.
    """

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, IPv4Address] = OrderedDict()
        self._names: dict[IPv4Address, str] = {}
        self._last = 0

    def address_of(self, name: str) -> IPv4Address:
        address = self._addresses.get(name)
        if address is None:
            address = self._next()
            self._addresses[name] = address
            self._names[address] = name
            if len(self._addresses) > MAX_NAMES:
                _, forgotten = self._addresses.popitem(last=False)
                del self._names[forgotten]
        self._addresses.move_to_end(name)
        return address

    def name_of(self, address: IPv4Address) -> str | None:
        return self._names.get(address)

    def _next(self) -> IPv4Address:
        while True:
            self._last = (self._last + 1) % RANGE.num_addresses
            address = RANGE[self._last]
            if self._last % 256 not in _LOOKS_LIKE_A_NETWORK and address not in self._names:
                return address
