"""This host's drain, from what is asked for to a host that has nothing: one at a time, and told to whoever listens."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

from contract.errors import WarrenError
from contract.hosts import Host
from contract.ids import new_id
from contract.models import Caller
from poold.drain import emptying, handing
from poold.drain.heirs import Need, heir, lack
from poold.drain.means import Asked, CannotDrain, Means
from poold.drain.outcomes import Outcome
from poold.drain.progress import Progress
from poold.drain.returning import Returning
from poold.errors import Fenced, LedgerError
from poold.ledger import drains, sandboxes
from poold.ledger.drains import Row
from poold.lifetimes import beside, finish
from poold.pool import OVERHEAD_MB

log = logging.getLogger("poold.drain")

ALONE = (
    "this host shares no store with others (POOLD_STORE is not set), so nothing can be moved:"
    " pooldctl drain --in-place pauses everything here, --destroy ends it"
)
NOBODY = (
    "no other host of the cluster is alive and takes work, so nothing can be moved: start one (pooldctl hosts shows"
    " them), or pause everything here with pooldctl drain --in-place, or end it with --destroy"
)
CALLED_OFF = "the operator called it off"
AGAIN_S = 5.0


class Departure:
    """Open as a block, beside the serving. A drain that a former daemon had begun goes on.

    The block ends with `Fenced`, in a group, when this host's line is another's: whoever starts it anew gets an empty
    host, which takes nothing until it is undrained.
    """

    def __init__(self, means: Means, returning: Returning, under_way: Row | None = None) -> None:
        self._means = means
        self._returning = returning
        self._row = under_way
        self._turn = asyncio.Lock()  # of those who ask
        self._to_do = asyncio.Event()
        self._end = asyncio.Event()  # of the emptying: its time is over, or it is called off
        self._timer: asyncio.TimerHandle | None = None
        self._called_off: str | None = None
        self._is_leaving = False
        self._none = asyncio.Event()  # there is no drain under way
        self.progress: Progress | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Departure"]:
        if self._row is not None:
            log.warning("a drain goes on", extra=self._row.view())
            self._begun(self._row)
            self._called_off = "its time was over when poold was started" if self._left_s(self._row) <= 0 else None
        async with beside(self._work_forever()):
            yield self

    @property
    def under_way(self) -> Row | None:
        return self._row

    # What is asked for.

    async def begin(self, asked: Asked, caller: Caller) -> Progress:
        """A drain, or the one that is under way, which may become more urgent. Raises `CannotDrain`."""
        async with self._turn:
            if self._row is not None and self.progress is not None:
                await self._hasten(self._row, asked)
                return self.progress
            if self._means.drained:
                return self._nothing_to_do()
            await self._check(asked)
            now_ms = self._means.sources.now_ms()
            until_ms = now_ms + round(1000 * asked.timeout_s)
            row = Row(new_id("dr", self._means.sources.entropy), now_ms, until_ms, asked.is_forced, asked.why)
            return await finish(self._write(row, caller))

    async def undrain(self) -> None:
        """Take sandboxes again: a drain that is under way is undone, a host that was emptied is opened as it is."""
        async with self._turn:
            if self._is_leaving:
                raise CannotDrain("this host is being handed over: undrain it when that is done")
            if self._row is None:
                await finish(asyncio.to_thread(self._means.drained.clear))
                await emptying.open_again(self._means)
                await self._returning.all()
                return
            self._called_off = CALLED_OFF
            self._end.set()
        await self._none.wait()

    async def _write(self, row: Row, caller: Caller) -> Progress:
        ledger = self._means.ledger
        try:
            await ledger.write(partial(drains.begin, row=row, request=caller.request))
        except LedgerError:
            if await ledger.read(drains.under_way) != row:  # else it counts, though nobody could say so
                raise
        return self._begun(row)

    def _begun(self, row: Row) -> Progress:
        self._means.sandboxes.is_draining = True
        self._row, self.progress, self._called_off = row, Progress(), None
        self._end.clear()
        self._none.clear()
        self._set_timer(row)
        self._to_do.set()
        return self.progress

    def _nothing_to_do(self) -> Progress:
        progress = Progress()
        progress.end(to=None, moved={}, asleep={}, failed={}, unknown=[], undone=None)
        return progress

    async def _hasten(self, row: Row, asked: Asked) -> None:
        now_ms = self._means.sources.now_ms()
        until_ms = now_ms + round(1000 * asked.timeout_s)
        more_force = asked.is_forced and not row.is_forced
        if not self._is_leaving and (more_force or (asked.is_urgent and until_ms < row.until_ms)):
            why = asked.why if asked.is_urgent else row.why
            sooner = replace(row, until_ms=min(until_ms, row.until_ms), is_forced=True, why=why)
            await finish(self._means.ledger.write(partial(drains.hasten, row=sooner, now_ms=now_ms)))
            self._row = sooner
            self._set_timer(sooner)

    def _set_timer(self, row: Row) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, self._left_s(row)), self._end.set)

    def _left_s(self, row: Row) -> float:
        return (row.until_ms - self._means.sources.now_ms()) / 1000

    # Whether it can be.

    async def _check(self, asked: Asked) -> None:
        means = self._means
        if means.store is None or means.membership.members is None:
            raise CannotDrain(ALONE)
        if asked.is_urgent:
            return
        here = await means.ledger.read(sandboxes.alive)
        need = Need.of(here, overhead_mb=OVERHEAD_MB)
        found = await self._heir(need)
        if found is None:
            raise CannotDrain(NOBODY)
        if here and not means.pool.engine.can_save and not asked.is_forced:
            names = ", ".join(sandbox.id for sandbox in here)
            raise CannotDrain(
                f"the {means.pool.engine.name} engine of this host cannot move a machine, and there are {names}: with"
                " --force they end here, and their tasks go on from their last checkpoint; --in-place leaves them"
            )
        lacking = lack(found, need)
        if lacking is not None and not asked.is_forced:
            raise CannotDrain(f"{lacking}: with --force what finds no room there sleeps until it is resumed")

    async def _heir(self, need: Need) -> Host | None:
        members = self._means.membership.members
        if members is None:
            return None
        with contextlib.suppress(WarrenError):  # what was seen last will do
            await members.look()
        return heir(self._means.name, members.living(), need)

    # How it is done.

    async def _work_forever(self) -> None:
        while True:
            await self._to_do.wait()
            self._to_do.clear()
            if self._row is not None and self.progress is not None:
                await self._work(self._row, self.progress)

    async def _work(self, row: Row, progress: Progress) -> None:
        """To its end, or undone. What nobody foresaw ends the daemon, and the next one goes on."""
        self._means.metrics.drains_total.add(outcome="begun")
        progress.tell("begun", drain=row.id, why=row.why, until_ms=row.until_ms, force=row.is_forced)
        failed: dict[str, str] = {}
        try:
            if self._called_off is None:
                failed = await self._emptied(row, progress)
            row = self._row or row  # it may have become more urgent
            if failed and not row.is_forced:
                self._called_off = self._called_off or "not everything could be moved"
            if self._called_off is None:
                await self._hand_over(row, progress, failed)
        except Fenced:
            raise
        except WarrenError as error:  # of the ledger, as on a full disk
            self._called_off = f"it failed: {error.message}"
        await self._undone(row, progress, failed)

    async def _undone(self, row: Row, progress: Progress, failed: dict[str, str]) -> None:
        """For as long as it takes: everything sleeps until then."""
        while True:
            try:
                await self._undo(row, progress, failed)
                return
            except WarrenError as error:
                log.error("a drain cannot be undone yet", extra={"drain": row.id, "why": str(error)})
                await asyncio.sleep(AGAIN_S)

    async def _emptied(self, row: Row, progress: Progress) -> dict[str, str]:
        """What is still here when all of it was tried, or the time is over, and why."""
        closing = asyncio.create_task(emptying.close(self._means, row))
        ending: asyncio.Task[Any] = asyncio.create_task(self._end.wait())
        try:
            await asyncio.wait({closing, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (closing, ending):
                task.cancel()
            await finish(asyncio.wait({closing, ending}))
        if not closing.cancelled():
            closing.result()
        return await emptying.Emptying(self._means, progress, self._end).run()

    async def _hand_over(self, row: Row, progress: Progress, failed: dict[str, str]) -> None:
        """Ends with `Fenced`, or returns if it is called off."""
        async with self._turn:  # from here on nobody calls it off
            found = await self._heir(Need(0, 0, frozenset()))
            if found is None and not row.is_forced:
                self._called_off = "no other host is alive any more"
            self._is_leaving = self._called_off is None
        if not self._is_leaving:
            return
        for name, why in failed.items():
            progress.tell("given_up", name, why=why)
            with contextlib.suppress(WarrenError):  # it has ended meanwhile, or is lost with this host's lease
                await self._means.sandboxes.give_up(name, f"host_drained: it could not be moved: {why}")
        try:
            await handing.Handing(self._means, row, progress, failed).run("" if found is None else found.name)
        except WarrenError as error:  # the next process sees in the lease how far it is
            log.error("the hand-over was cut short", extra={"drain": row.id, "why": str(error)})
        raise Fenced("this host was emptied: it starts anew")

    async def _undo(self, row: Row, progress: Progress, failed: dict[str, str]) -> None:
        """Everything is here as it was before: what ran is brought back, tasks go on."""
        means, why = self._means, self._called_off or ""
        log.warning("a drain is undone", extra={"drain": row.id, "why": why, "left": sorted(failed)})
        progress.tell("undoing", why=why)
        await finish(asyncio.to_thread(means.drained.clear))
        await means.ledger.write(partial(drains.undo, row=row, why=why, now_ms=means.sources.now_ms()))
        if self._timer is not None:
            self._timer.cancel()
        await emptying.open_again(means)
        self._row = None
        self._none.set()
        names = await self._returning.all()
        await self._returning.over(names)
        back = {name: self._returning.told[name] for name in names if name in self._returning.told}
        means.metrics.drains_total.add(outcome="undone")
        _tell_back(progress, back)
        asleep = {name: outcome.why for name, outcome in back.items() if outcome.why is not None}
        progress.end(to=None, moved={}, asleep=asleep, failed=failed, unknown=[], undone=why)


def _tell_back(progress: Progress, back: dict[str, Outcome]) -> None:
    for name, outcome in back.items():
        handing.tell_outcome(progress, name, outcome)
