"""Refusals, for the audit of a host: a gateway has no ledger of its own.

They are queued, counted together where they are alike, and a few are posted at a time. A flood of them fills neither
our memory nor a host's disk: what does not fit is counted, and one row says how many that were.
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
MAX_POSTED = 20  # rows each time; a host writes down as many refused tickets a second
LEFT_OUT = "gateway.refusals_left_out"
NOBODY = "nobody"  # the owner of a request without a good key

Alike = tuple[str, str, str | None, tuple[tuple[str, str], ...]]


@dataclass
class _Row:
    at_ms: int
    request: str | None
    host: str | None = None
    count: int = field(default=1)


class Refusals:
    """`add` never waits and never raises."""

    def __init__(self, hosts: Hosts, *, gateway: str, now_ms: Callable[[], int]) -> None:
        self._hosts = hosts
        self._gateway = gateway
        self._now_ms = now_ms
        self._waiting: dict[Alike, _Row] = {}
        self._left_out = 0  # since a host was last told
        self.dropped = 0

    def add(
        self,
        action: str,
        *,
        request: str,
        owner: str = NOBODY,
        sandbox: str | None = None,
        host: str | None = None,
        **detail: str,
    ) -> None:
        """Write down that a request was refused. `detail` must not have a secret in it.

        Of those that are alike the first one's `request` and `host` are kept: whoever asks may name another each time.
        """
        alike = (action, owner, sandbox, tuple(sorted(detail.items())))
        row = self._waiting.get(alike)
        if row is not None:
            row.count += 1
        elif len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            self._left_out += 1
        else:
            self._waiting[alike] = _Row(self._now_ms(), request, host)
            told = detail if host is None else {**detail, "host": host}
            log.warning("refused", extra={"action": action, "owner": owner, "request": request, **told})

    async def keep(self) -> None:
        """Post what was added, until cancelled; then what is left, if a host takes it at once."""
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                await self._post()
        finally:
            while (self._waiting or self._left_out) and await self._post():
                pass

    async def _post(self) -> bool:
        """Post the oldest rows, and how many had no place. False if no host takes them: they wait for the next time."""
        left_out, self._left_out = self._left_out, 0
        most = MAX_POSTED - 1 if left_out else MAX_POSTED
        batch = dict(list(self._waiting.items())[:most])
        self._waiting = {alike: row for alike, row in self._waiting.items() if alike not in batch}
        rows = [self._row(alike, row) for alike, row in batch.items()]
        if left_out:
            rows.append(self._row((LEFT_OUT, NOBODY, None, ()), _Row(self._now_ms(), None, count=left_out)))
        if not rows or await self._is_posted(rows):
            return True
        self._waiting = batch | self._waiting
        self._left_out += left_out
        return False

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
        if row.host is not None:
            told["host"] = row.host
        found = {"at_ms": row.at_ms, "owner": owner, "action": action, "detail": told}
        more = {"request": row.request, "sandbox": sandbox}
        return found | {name: value for name, value in more.items() if value is not None}
