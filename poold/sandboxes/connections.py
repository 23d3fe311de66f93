"""What proxies tell, written down: each connection a row, and refusals as events, as many as somebody would read."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from contract.egress import Row, Waiting
from contract.errors import WarrenError
from poold.egress.proxies import Told
from poold.ledger import Ledger, egress, sandboxes
from poold.metrics import Metrics

log = logging.getLogger("poold.egress")

QUIET_MS = 60_000  # the same refusal is one event in so long; every one of them is in the audit
KNOWN = 4096  # refusals that are remembered
PER_MINUTE = 60  # events of one sandbox

Key = tuple[str | None, str | None, str | None, int | None, str | None]


class Connections(Told):
    """Writes rows into the ledger. Those of a machine that nobody has claimed are counted only."""

    def __init__(self, ledger: Ledger, metrics: Metrics, now_ms: Callable[[], int]) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._now_ms = now_ms
        self._told: OrderedDict[Key, int] = OrderedDict()
        self._minutes: dict[str, tuple[int, int]] = {}  # by sandbox: which minute, and how many events in it

    async def wrote(self, proxy: str, rows: list[Row]) -> None:
        told = {place for place, row in enumerate(rows) if row.verdict == "refused" and self._is_news(_key(row))}
        try:
            await self._ledger.write(
                partial(egress.add, proxy=proxy, rows=rows, told=told, now_ms=self._now_ms()), durable=False
            )
        except BaseException:  # it is tried again, and is news then
            for place in told:
                self._untell(_key(rows[place]))
            raise
        for row in rows:
            self._metrics.egress_connections_total.add(row.times, verdict=row.verdict, via=row.via)
            self._metrics.egress_bytes_total.add(row.up, way="up")
            self._metrics.egress_bytes_total.add(row.down, way="down")

    def waits(self, waiting: Waiting) -> None:
        key = (waiting.sandbox, waiting.name, waiting.address, waiting.port, "waiting")
        if waiting.sandbox is None or not self._is_news(key):
            return
        data = {name: getattr(waiting, name) for name in ("name", "address", "port", "until_ms")}
        tell = partial(
            sandboxes.tell, sandbox_id=waiting.sandbox, kind="egress_waiting", data=data, at_ms=self._now_ms()
        )
        try:
            self._ledger.submit(tell, durable=False)
        except WarrenError as error:  # it is closed: the connection waits on, and its end is told
            log.warning("a connection that waits was not told", extra={"why": str(error)})

    def _is_news(self, key: Key) -> bool:
        """Whether somebody who reads the timeline wants to know: not what they know, and not hundreds at once."""
        sandbox = key[0]
        if sandbox is None:
            return False
        if self._now_ms() - self._told.get(key, -QUIET_MS) < QUIET_MS:
            return False
        minute, count = self._minutes.get(sandbox, (0, 0))
        this_minute = self._now_ms() // 60_000
        count = count + 1 if minute == this_minute else 1
        if count > PER_MINUTE:
            return False
        if len(self._minutes) >= KNOWN:
            self._minutes.clear()
        self._minutes[sandbox] = (this_minute, count)
        self._told[key] = self._now_ms()
        self._told.move_to_end(key)
        while len(self._told) > KNOWN:
            self._told.popitem(last=False)
        return True

    def _untell(self, key: Key) -> None:
        """What was news has not been told after all."""
        self._told.pop(key, None)
        if key[0] in self._minutes:
            minute, count = self._minutes[key[0]]
            self._minutes[key[0]] = minute, count - 1


def _key(row: Row) -> Key:
    return row.sandbox, row.name, row.address, row.port, row.why
