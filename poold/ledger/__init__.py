"""The ledger: the host's SQLite file. What is not in it did not happen.

One thread writes; writes that wait at the same time share one commit, and each is acknowledged after it.
One function per question (`poold.ledger.sandboxes`), SQL in plain sight, no await inside a transaction.
"""

from poold.ledger.ledger import Ledger

__all__ = ["Ledger"]
