"""Emptying this host for real: everything sleeps in the store, the host's line goes to another host, and that one
wakes what ran before.

The ledger says at every moment what is owed (`poold.ledger.drains`): a row for the drain before anything is done, and
with each sandbox that ran the drain that puts it to sleep. Until the lease is left everything can be undone, and a
daemon that is killed goes on where it was. Leaving the lease is one conditional write: before it everything is this
host's, after it whoever takes it. Decision 26 has the whole of it.
"""

from poold.drain.departure import Departure
from poold.drain.in_place import in_place
from poold.drain.means import Asked, CannotDrain, Drained, Means
from poold.drain.returning import Returning

__all__ = ["Asked", "CannotDrain", "Departure", "Drained", "Means", "Returning", "in_place"]
