"""The second half of a drain: the host's line goes to another one. After the lease is left there is no way back here.

What goes wrong from then on ends this process: the next one finds in the lease whether its line is another's, or still
its own, and then the drain goes on.
"""

import asyncio
import logging
import time

from contract.errors import WarrenError
from contract.states import State
from poold.drain.means import Means
from poold.drain.outcomes import BadOutcomes, Outcome, Outcomes
from poold.drain.progress import Progress
from poold.lease.starting import PREFIX
from poold.lease.written import BadLease, Lease
from poold.ledger import drains
from poold.ledger.drains import Row
from poold.lifetimes import finish

log = logging.getLogger("poold.drain")

LOOK_S = 0.5
LEAST_S = 120.0  # that the other host has to wake everything, however little time was left


class Handing:
    """Of one drain, whose host has nothing running any more."""

    def __init__(self, means: Means, row: Row, progress: Progress, failed: dict[str, str]) -> None:
        if means.store is None or means.membership.keeper is None:
            raise ValueError("a host that is alone has nobody to hand over to")
        self._means = means
        self._row = row
        self._progress = progress
        self._failed = failed
        self._store = means.store
        self._keeper = means.membership.keeper
        self._outcomes = Outcomes(means.store)
        self._heir: str | None = None
        self._told: dict[str, Outcome] = {}
        self._taker: str | None = None
        self._is_carried = False

    async def run(self, heir: str) -> None:
        """Hand over, and tell what became of it. Whatever this raises, this host has nothing any more."""
        means = self._means
        wanted = set(await means.ledger.read(drains.wanted))
        if means.cover is not None:
            await means.cover()  # most of it, while the lease is renewed
        await finish(asyncio.to_thread(means.drained.set))
        self._heir = heir or None
        self._progress.tell("handing_over", host=self._heir)
        await self._keeper.leave(heir, means.cover)
        log.warning("this host's line is left to others", extra={"drain": self._row.id, "heir": heir})
        limit_s = max(LEAST_S, (self._row.until_ms - means.sources.now_ms()) / 1000)
        await self._watch(wanted, time.monotonic() + limit_s)
        await self._end(wanted)

    async def _watch(self, wanted: set[str], give_up: float) -> None:
        """Until all that ran is accounted for at the other host, or the time is over."""
        while time.monotonic() < give_up:
            try:
                await self._look()
            except (WarrenError, BadLease, BadOutcomes) as error:
                log.warning("what became of the drain cannot be seen", extra={"why": str(error)})
            if self._is_carried and wanted <= self._told.keys():
                return
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        name = self._means.name
        lease = Lease.decode((await self._store.get(f"{PREFIX}{name}")).data, name)
        ours = [taken for taken in lease.taken if taken.root <= self._keeper.epoch <= taken.last]
        if ours and self._taker != ours[0].by:
            self._taker = ours[0].by
            self._progress.tell("handed_over", host=self._taker)
        if not ours and not lease.root and not self._is_carried:
            self._is_carried = self._keeper.is_away = True
            self._taker = self._taker or self._heir  # it was quicker than our looks
            self._progress.tell("carried_on", host=self._taker)
        for sandbox, outcome in (await self._outcomes.get(self._row.id)).items():
            if sandbox not in self._told:
                self._told[sandbox] = outcome
                tell_outcome(self._progress, sandbox, outcome)

    async def _end(self, wanted: set[str]) -> None:
        moved = {name: each.host for name, each in self._told.items() if each.state == State.RUNNING}
        asleep = {name: each.why or each.state for name, each in self._told.items() if name not in moved}
        unknown = sorted(wanted - self._told.keys())
        outcome = "moved" if self._is_carried and not (asleep or unknown or self._failed) else "partly"
        self._means.metrics.drains_total.add(outcome=outcome)
        undone = None if self._is_carried or self._taker else "no other host has taken it in time"
        if self._is_carried and not unknown:
            try:
                await self._outcomes.remove(self._row.id)
            except WarrenError as error:
                log.info("the news of a drain stay in the store", extra={"why": str(error)})
        self._progress.end(
            to=self._taker, moved=moved, asleep=asleep, failed=self._failed, unknown=unknown, undone=undone
        )
        await self._progress.heard()


def tell_outcome(progress: Progress, sandbox: str, outcome: Outcome) -> None:
    if outcome.state == State.RUNNING:
        progress.tell("resumed", sandbox, host=outcome.host)
    else:
        progress.tell("asleep", sandbox, host=outcome.host, why=outcome.why or f"it is {outcome.state}")
