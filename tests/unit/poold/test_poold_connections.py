"""Connections on their way into the ledger: counted once and told once, however often that takes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract.egress import Row
from poold.errors import LedgerFull
from poold.ledger import events, sandboxes
from poold.ledger.driver import Connection
from poold.metrics import Metrics
from poold.sandboxes import Connections
from tests.unit.ledger.rows import box, memory

REFUSED = Row(box(1).id, 5, "refused", "dns", "b.example", None, None, None, "policy", 3, 4, 0, 2, 1, None)


@dataclass
class FullLedger:
    """Takes nothing for a while."""

    db: Connection
    failures: int

    async def write(self, work: Callable[[Connection], Any], *, durable: bool) -> Any:
        if self.failures:
            self.failures -= 1
            raise LedgerFull(Path("ledger"))
        return work(self.db)


async def test_what_a_full_ledger_takes_at_last_is_counted_once_and_told() -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        metrics = Metrics()
        connections = Connections(FullLedger(db, 100), metrics, lambda: 1000)  # type: ignore[arg-type]
        for _ in range(100):
            with pytest.raises(LedgerFull):
                await connections.wrote("1.1", [REFUSED])
        await connections.wrote("1.1", [REFUSED])
        assert 'egress_connections_total{verdict="refused",via="dns"} 2\n' in metrics.render().decode()
        told = [event for event in events.after(db, box(1).id, 0, 10) if event.kind == "egress_refused"]
        assert len(told) == 1
