"""Whether an owner's open book on this host knows of every idempotency key that was used anywhere.

Whoever opens a book brings what all other hosts have remembered. A host that could not be asked, or whose ledger is
just being carried on by another, may know of a key that is not among it: until that is settled, a key that is not known
here may have been used, and nothing is made for it. Then the book is collected once more.

All of it is in memory: after a start, a book is collected again before a key counts as new.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from contract.errors import CapacityError, NoBook
from poold.lease.membership import Membership

MAX_OWNERS = 100_000
AGAIN_S = 5.0  # a book that lacks something is collected again so often, and no more
RETRY_AFTER_S = 2

T = TypeVar("T")


class NotSettled(CapacityError):
    """What a lost host knew is not here yet."""

    code = "not_settled"


@dataclass(frozen=True)
class _Collected:
    waits: frozenset[str]  # hosts that may know of keys that are not in the book
    at_s: float


class Books:
    """By owner. A host that is alone has nobody to ask."""

    def __init__(self, membership: Membership, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._membership = membership
        self._clock_s = clock_s
        self._asked: OrderedDict[str, frozenset[str]] = (
            OrderedDict()
        )  # whose line was open when somebody began to collect
        self._known: OrderedDict[str, _Collected] = OrderedDict()

    def missed(self, owner: str) -> None:
        """Somebody was told that there is no such book, and collects it from now on."""
        self._known.pop(owner, None)
        if owner not in self._asked:  # the oldest counts: whoever opens the book may have begun then
            _keep(self._asked, owner, self._membership.open_lines())

    def opened(self, owner: str, unreached: Iterable[str]) -> None:
        """It was opened with what all hosts remember but these. Since when that was collected must be known."""
        before = self._asked.pop(owner, None)
        self._known.pop(owner, None)
        if before is not None:
            waits = before | (frozenset(unreached) & self._membership.holders())
            _keep(self._known, owner, _Collected(waits, self._clock_s()))

    def must_know(self, owner: str) -> None:
        """Raise `NotSettled`, or `NoBook`, unless a key that is not in the book was never used."""
        if self._membership.is_alone:
            return
        found = self._known.get(owner)
        if found is None:
            raise NoBook(f"the book of owner {owner} must be collected anew: close it elsewhere and open it here")
        if not found.waits:
            return
        left = found.waits & (self._membership.open_lines() | self._membership.holders())
        if left and self._clock_s() - found.at_s < AGAIN_S:
            named = ", ".join(sorted(filter(None, left))) or "unknown"
            raise NotSettled(
                f"whether this idempotency key was used is not known until what lost hosts knew is here: {named}",
                retry_after_s=RETRY_AFTER_S,
            )
        raise NoBook(f"the book of owner {owner} must be collected anew: what it lacked may be had by now")


def _keep(where: OrderedDict[str, T], owner: str, value: T) -> None:
    where[owner] = value
    where.move_to_end(owner)
    if len(where) > MAX_OWNERS:
        where.popitem(last=False)
