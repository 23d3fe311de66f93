"""Recovery: at its start the daemon observes what there is, plans what to do about it, and does it.

The ledger says what should be; processes and folders say what is. What should be and is, is taken over; what should be
and is not, is written off with the reason; what is and should not be, is removed.
"""

from poold.reconcile.plan import Plan, plan
from poold.reconcile.recover import Recovery, clear, take_over

__all__ = ["Plan", "Recovery", "clear", "plan", "take_over"]
