"""What can go wrong with a replica."""

from poold.errors import HostFault


class ReplicaError(HostFault):
    """Litestream did not do what it was asked; it may do it the next time."""

    code = "replica_failed"


class NothingToRestore(HostFault):
    """There is no replica where one was looked for, or none that is whole enough to begin with."""

    code = "nothing_to_restore"


class ReplicaDamaged(HostFault):
    """What is in the store is not a ledger that this program could go on with. Nothing was deleted."""

    code = "replica_damaged"
