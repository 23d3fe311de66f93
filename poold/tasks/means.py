"""What the lives of tasks work with."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from poold.archives.errors import translated
from poold.config import TasksConfig
from poold.ledger import Ledger
from poold.ledger.driver import Connection
from poold.metrics import Metrics
from poold.sandboxes import Means, Sandboxes
from poold.store import Store
from poold.tasks.artifacts import Artifacts
from poold.tasks.escrow import Escrow
from poold.tasks.prices import Prices, Tokens
from poold.tasks.queue import Queue
from poold.tasks.vault import Kept, Vault

T = TypeVar("T")


@dataclass(frozen=True)
class Tools:
    """What every task's life needs."""

    means: Means
    sandboxes: Sandboxes
    config: TasksConfig
    vault: Vault
    artifacts: Artifacts
    prices: Prices
    queue: Queue
    default_image: str
    store: Store  # where checkpoints are
    escrow: Escrow | None = None  # for hosts that would have to go on with our tasks

    @classmethod
    def make(
        cls,
        means: Means,
        sandboxes: Sandboxes,
        config: TasksConfig,
        prices: Prices,
        *,
        state_dir: Path,
        image: str,
        store: Store,
        escrow: Escrow | None = None,
    ) -> "Tools":
        """Where hosts share a folder, what tasks leave behind is there anyway; alone, it is on this host's disk."""
        vault = Vault(state_dir / "tasks")
        also = store if escrow is not None and not config.is_shared else None
        artifacts = Artifacts(config.store / "tasks", is_shared=config.is_shared, store=also)
        return cls(means, sandboxes, config, vault, artifacts, prices, Queue(), image, store, escrow)

    @property
    def ledger(self) -> Ledger:
        return self.means.ledger

    @property
    def metrics(self) -> Metrics:
        return self.means.metrics

    @property
    def can_save(self) -> bool:
        """Whether machines of this host can be put on disk."""
        return self.means.pool.engine.can_save

    def now_ms(self) -> int:
        return self.means.sources.now_ms()

    async def read(self, question: Callable[[Connection], T]) -> T:
        return await self.ledger.read(question)

    async def write(self, work: Callable[[Connection], T], *, durable: bool = True) -> T:
        return await self.ledger.write(work, durable=durable)

    def secrets_of(self, task_id: str) -> Kept:
        """What only the vault has of the task. Blocks."""
        with translated("reading the secrets of", Path(task_id)):
            return self.vault.get(task_id)

    def keep_secrets(self, task_id: str, kept: Kept) -> None:
        """Blocks."""
        with translated("keeping the secrets of", Path(task_id)):
            self.vault.put(task_id, kept)

    async def share_secrets(self, task_id: str, kept: Kept) -> None:
        """For whoever would have to go on with the task, if this host were lost."""
        if self.escrow is not None:
            await self.escrow.put(task_id, kept)

    async def forget_secrets(self, task_id: str) -> None:
        """Succeeds if there are none."""
        with translated("removing the secrets of", Path(task_id)):
            await asyncio.to_thread(self.vault.remove, task_id)
        if self.escrow is not None:
            await self.escrow.remove(task_id)

    def price(self, model: str | None, used: Mapping[str, int]) -> float | None:
        """What an agent that tells no dollars has spent, by the operator's prices."""
        tokens = Tokens(
            input=used.get("input_tokens", 0),
            output=used.get("output_tokens", 0),
            cache_read=used.get("cache_read_tokens", 0),
            cache_write=used.get("cache_write_tokens", 0),
        )
        return self.prices.usd(model, tokens)
