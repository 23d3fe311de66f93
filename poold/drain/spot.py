"""Spot interruptions: the host looks for the notice itself, and moves everything away in the time that it leaves.

The metadata are asked from the host's own network. No guest ever reaches them (`poold/egress/addresses.py`).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict

from contract.errors import WarrenError
from contract.models import Caller
from poold.drain.departure import Departure
from poold.drain.imds import Imds, ImdsPlace, ImdsTrouble, Notice
from poold.drain.in_place import in_place
from poold.drain.means import Asked, CannotDrain
from poold.ledger import Ledger, audit
from poold.metrics import Metrics
from poold.sandboxes import Sandboxes

log = logging.getLogger("poold.spot")

LOOK_S = 5.0  # as EC2's manual says
USUAL_S = 120.0  # from the notice to the end
SPARE_S = 15.0  # for the other host to take the lease while this one still answers
LEAST_S = 5.0


class Spot:
    """Watches, until it is cancelled."""

    def __init__(
        self,
        place: ImdsPlace,
        departure: Departure,
        sandboxes: Sandboxes,
        ledger: Ledger,
        metrics: Metrics,
        *,
        now_ms: Callable[[], int],
        look_s: float = LOOK_S,
    ) -> None:
        self._imds = Imds(place)
        self._place = place
        self._departure = departure
        self._sandboxes = sandboxes
        self._ledger = ledger
        self._metrics = metrics
        self._now_ms = now_ms
        self._look_s = look_s
        self._seen: set[Notice] = set()
        self._trouble = ""

    async def watch(self) -> None:
        if self._place.is_probed and not await self._is_there():
            log.info("no instance metadata: no spot notices are looked for", extra={"place": str(self._place)})
            return
        while True:
            await self._look()
            await asyncio.sleep(self._look_s)

    async def _is_there(self) -> bool:
        try:
            await self._imds.notice()
        except ImdsTrouble:
            return False
        return True

    async def _look(self) -> None:
        try:
            notice = await self._imds.notice()
        except ImdsTrouble as error:
            if not self._trouble:
                log.warning("spot notices cannot be looked for", extra={"why": str(error)})
            self._trouble = str(error)
            return
        if self._trouble:
            log.info("spot notices can be looked for again")
        self._trouble = ""
        if notice is not None and notice not in self._seen:
            self._seen.add(notice)
            await self._heed(notice)

    async def _heed(self, notice: Notice) -> None:
        """It is told, and acted on if the host goes. What cannot be written down is acted on all the same."""
        log.warning("the instance's metadata say that this host is to go", extra=asdict(notice))
        self._metrics.spot_notices_total.add(kind=notice.kind)
        entry = audit.Entry(self._now_ms(), "host.spot_notice", owner="operator", detail=asdict(notice))
        writing = asyncio.ensure_future(self._ledger.write(lambda db: audit.add(db, entry)))
        if notice.kind != "rebalance":
            try:
                await self._go(notice)
            except WarrenError as error:
                log.error("this host could not be emptied", extra={"why": str(error)})
        try:
            await writing
        except WarrenError as error:
            log.warning("a notice was not written down", extra={"why": str(error)})

    async def _go(self, notice: Notice) -> None:
        left_s = USUAL_S if notice.at_ms is None else (notice.at_ms - self._now_ms()) / 1000
        why = f"a spot notice: {notice.kind}"
        asked = Asked(max(LEAST_S, left_s - SPARE_S), is_forced=True, is_urgent=True, why=why)
        try:
            await self._departure.begin(asked, Caller())
        except CannotDrain as error:  # a disk that is kept may come back
            log.error("nothing can be moved: what runs is paused here", extra={"why": error.message})
            async for sandbox, failed in in_place(self._sandboxes, "pause", Caller()):
                log.info("paused", extra={"sandbox": sandbox, "why": None if failed is None else str(failed)})
