"""Refusals, for the audit of a host: a gateway has no ledger of its own.

They are queued, counted together where they are alike, and posted in batches. A flood of them fills neither our memory
nor a host's disk: what does not fit is counted only.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from contract.errors import WarrenError
from contract.tickets import Access
from gateway.hosts import Hosts

log = logging.getLogger("gateway.audit")

EVERY_S = 1.0
MAX_WAITING = 1_000  # different ones
MAX_BATCH = 100  # that a host takes at once
NOBODY = "nobody"  # the owner of a request without a good key

Alike = tuple[str, str, str | None, tuple[tuple[str, str], ...]]


@dataclass
class _Row:
    at_ms: int
    request: str
    count: int = field(default=1)


class Refusals:
    """`add` never waits and never raises."""

    def __init__(self, hosts: Hosts, *, gateway: str, now_ms: Callable[[], int]) -> None:
        self._hosts = hosts
        self._gateway = gateway
        self._now_ms = now_ms
        self._waiting: dict[Alike, _Row] = {}
        self.dropped = 0

    def add(self, action: str, *, request: str, owner: str = NOBODY, sandbox: str | None = None, **detail: str) -> None:
        """Write down that a request was refused. `detail` must not have a secret in it."""
        alike = (action, owner, sandbox, tuple(sorted(detail.items())))
        row = self._waiting.get(alike)
        if row is not None:
            row.count += 1
            return
        log.warning("refused", extra={"action": action, "owner": owner, "request": request, **detail})
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
        else:
            self._waiting[alike] = _Row(self._now_ms(), request)

    async def keep(self) -> None:
        """Post what was added, until cancelled; then what is left, if a host takes it at once."""
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                await self._post()
        finally:
            await self._post()

    async def _post(self) -> None:
        while self._waiting:
            batch = dict(list(self._waiting.items())[:MAX_BATCH])
            self._waiting = {alike: row for alike, row in self._waiting.items() if alike not in batch}
            if not await self._is_posted([self._row(alike, row) for alike, row in batch.items()]):
                self._waiting = batch | self._waiting  # for the next time
                return

    async def _is_posted(self, rows: list[dict[str, Any]]) -> bool:
        for name in self._hosts.alive():
            try:
                answer = await self._hosts.ask(name, "POST", "/v1/audit", Access.HOST, value={"rows": rows})
            except WarrenError:
                continue
            if answer.status < 300:
                return True
            log.error("a host does not take refusals into its audit", extra={"host": name, "status": answer.status})
        return False

    def _row(self, alike: Alike, row: _Row) -> dict[str, Any]:
        action, owner, sandbox, detail = alike
        told = {"gateway": self._gateway, "count": row.count, **dict(detail)}
        found = {"at_ms": row.at_ms, "owner": owner, "action": action, "detail": told, "request": row.request}
        return found if sandbox is None else {**found, "sandbox": sandbox}
