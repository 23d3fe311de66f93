"""The ledger's replica in the store: written by Litestream, a child of poold, and read by who takes a host over.

- `target`: where a replica is, in S3 or in a folder: `ledger/HOST/EPOCH`, below what `POOLD_STORE` says
- `litestream`: the program: what it is told, how it is started, and that there is one at most
- `control`: its control socket
- `replica`: the replica as the daemon has it: `cover` brings it up to date
- `restoring`: a ledger made from a replica, whoever wrote it

Litestream does not fence: it writes to its path whoever else does. So the lease's epoch is part of the path, and a host
that comes back too late writes where nobody reads. What it knows of a path it keeps in a folder of its own for each
epoch: with what it knew of another path it would look for files that are long gone.
"""

from poold.replica.litestream import Litestream
from poold.replica.replica import Replica
from poold.replica.target import S3, Folder, Target, replica_of

__all__ = ["S3", "Folder", "Litestream", "Replica", "Target", "replica_of"]
