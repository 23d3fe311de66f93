"""Deliveries as the ledger and the vault have them: the row says what and to whom, the vault what it is signed with."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from poold.errors import HostFault
from poold.ledger import Ledger, webhooks
from poold.metrics import Metrics
from poold.tasks.vault import Vault
from poold.tasks.webhooks import PAGE_PER_OWNER, Delivery

log = logging.getLogger("poold.tasks")


class Ends:
    """The ends of tasks of which somebody is to be told: a `webhooks.Source`."""

    def __init__(self, ledger: Ledger, vault: Vault, metrics: Metrics) -> None:
        self._ledger = ledger
        self._vault = vault
        self._metrics = metrics

    async def due(self, now_ms: int) -> Sequence[Delivery]:
        rows = await self._ledger.read(partial(webhooks.due, now_ms=now_ms, per_owner=PAGE_PER_OWNER))
        return await asyncio.to_thread(self._signed, rows) if rows else ()

    def _signed(self, rows: list[webhooks.Due]) -> list[Delivery]:
        """One whose secret cannot be read is not sent without it: it waits, and nobody else does."""
        found = []
        for row in rows:
            try:
                secret = self._vault.get(row.task).webhook_secret
            except (OSError, HostFault) as error:  # it waits; others need not
                log.error("a delivery cannot be signed", extra={"task": row.task, "why": str(error)})
                continue
            found.append(Delivery(row.id, row.owner, row.url, row.body, secret, row.tries))
        return found

    async def done(self, delivery_id: str) -> None:
        self._metrics.webhooks_total.add(outcome="delivered")
        await self._ledger.write(partial(webhooks.done, delivery_id=delivery_id))

    async def failed(self, delivery_id: str, why: str, next_ms: int | None) -> None:
        self._metrics.webhooks_total.add(outcome="given_up" if next_ms is None else "failed")
        write = partial(webhooks.failed, delivery_id=delivery_id, why=why, next_ms=next_ms)
        await self._ledger.write(write)
