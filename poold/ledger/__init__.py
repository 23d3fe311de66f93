"""The ledger: the host's SQLite file. What is not in it did not happen.

One thread writes; writes that wait at the same time share one commit, and each is acknowledged after it. Readers never
wait for it. One module per subject, one function per question, SQL in plain sight, no await inside a transaction:

- `sandboxes`, `events`, `audit`, `usage`, `rules`: what is and what happened
- `tasks`, `steps`, `questions`, `artifacts`, `webhooks`: what agents are to do, did, asked and left, and who is told
- `reservations`, `repeats`, `replies`: what gateways have this host remember
- `retention`: what is removed, and when
- `care`: backup and check
- `ledger`: the file as the daemon has it open (`write`, `read`, `follow`), made of `writer`, `readers` and `follow`,
  and of `covering`, which holds back what its replica does not have yet
- `driver`: the only way to SQLite
"""

from poold.ledger.ledger import Ledger

__all__ = ["Ledger"]
