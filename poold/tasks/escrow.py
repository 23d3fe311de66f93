"""What another host would need to go on with a task and is in no row: its secrets, sealed, in the store.

They are there before the task is acknowledged and as long as its own host needs them. A host without a key to seal with
keeps them to itself; a task that has some then ends with its host.
"""

from poold.seal import Seal
from poold.store import Store
from poold.tasks.vault import Kept


class Escrow:
    """Raises what the store raises, and `Broken` for what is not this cluster's."""

    def __init__(self, store: Store, seal: Seal, cluster: str) -> None:
        self._store = store
        self._seal = seal
        self._cluster = cluster

    async def put(self, task_id: str, kept: Kept) -> None:
        """Also if there are none: whoever finds nothing does not know."""
        await self._store.put(_key(task_id), self._seal.close(kept.encode(), self._about(task_id)))

    async def get(self, task_id: str) -> Kept:
        """Raises `NoObject` if its host kept them to itself."""
        found = await self._store.get(_key(task_id))
        return Kept.decode(self._seal.open(found.data, self._about(task_id)))

    async def remove(self, task_id: str) -> None:
        """Succeeds if there is nothing."""
        await self._store.delete(_key(task_id))

    def _about(self, task_id: str) -> str:
        return f"{self._cluster}/{_key(task_id)}"


def _key(task_id: str) -> str:
    return f"escrow/{task_id}"
