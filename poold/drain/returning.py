"""What a drain put to sleep while it ran is brought back: at the host that has taken it in, or here, if it is undone.

Whom it is owed to is in the ledger (`wanted`) until it runs again or it is known that it does not. So a daemon that is
killed meanwhile goes on with it, and so does whoever takes this host over. What finds no room for a minute stays in the
store; it says so, and is resumed as anything that sleeps is.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from functools import partial

from contract.errors import CapacityError, NotFound, WarrenError
from contract.states import ASLEEP, State
from poold.drain.outcomes import MAX_WHY_CHARS, Outcome, Outcomes
from poold.errors import Draining, Fenced
from poold.ledger import Ledger, drains
from poold.sandboxes import Sandboxes

log = logging.getLogger("poold.drain")

AT_ONCE = 4
ROOM_S = 60.0  # others may leave, or pressure ease
RETRY_S = 2.0
TRIES = 3  # to tell who was drained


class Returning:
    """Open as a block: after it nothing is under way, and the next daemon goes on."""

    def __init__(
        self, name: str, ledger: Ledger, sandboxes: Sandboxes, outcomes: Outcomes | None, *, room_s: float = ROOM_S
    ) -> None:
        self._name = name
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._outcomes = outcomes
        self._room_s = room_s
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._tasks = asyncio.TaskGroup()
        self.told: dict[str, Outcome] = {}  # of those that were brought back by this daemon

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Returning"]:
        """What a former daemon had not brought back is brought back first, unless this host is being emptied."""
        async with self._tasks:
            try:
                if not self._sandboxes.is_draining:
                    await self.all()
                yield self
            finally:
                for task in self._under_way.values():
                    task.cancel()

    async def all(self) -> list[str]:
        """Bring back everything that is owed to somebody. Whom that is."""
        names = list(await self._ledger.read(drains.wanted))
        for name in names:
            await self.add(name)
        return names

    async def add(self, sandbox_id: str) -> None:
        """A sandbox has come into the ledger: if it is wanted, it is brought back."""
        drain = await self._ledger.read(partial(drains.drain_of, sandbox_id=sandbox_id))
        if drain is not None and sandbox_id not in self._under_way:
            task = self._tasks.create_task(self._bring(sandbox_id, drain))
            self._under_way[sandbox_id] = task
            task.add_done_callback(lambda _: self._under_way.pop(sandbox_id, None))

    async def over(self, names: list[str]) -> None:
        """Return when nothing is under way for any of these."""
        while waiting := [self._under_way[name] for name in names if name in self._under_way]:
            await asyncio.wait(waiting)

    async def _bring(self, sandbox_id: str, drain: str) -> None:
        async with self._turn:
            try:
                outcome = await self._brought(sandbox_id)
                if outcome is not None:
                    await self._settle(sandbox_id, drain, outcome)
            except WarrenError as error:  # it is still wanted: the next daemon tries again
                log.error("a sandbox was not brought back", extra={"sandbox": sandbox_id, "why": str(error)})

    async def _brought(self, sandbox_id: str) -> Outcome | None:
        """What became of it. None: this host is being emptied itself, and who has it next owes it that."""
        give_up = time.monotonic() + self._room_s
        while True:
            try:
                if await self._ledger.read(partial(drains.drain_of, sandbox_id=sandbox_id)) is None:
                    return Outcome(self._name, (await self._sandboxes.get(sandbox_id)).state)  # somebody let it sleep
                sandbox = await self._sandboxes.resume(sandbox_id)
                return Outcome(self._name, sandbox.state)
            except (Draining, Fenced):
                return None
            except CapacityError as error:
                why = f"there is no room for it on {self._name} after its host was drained: {error.message}"
                if time.monotonic() >= give_up:
                    return await self._asleep(sandbox_id, why)
            except NotFound:
                return None
            except WarrenError as error:
                return await self._asleep(sandbox_id, f"it could not be resumed on {self._name}: {error.message}")
            await asyncio.sleep(RETRY_S)

    async def _asleep(self, sandbox_id: str, why: str) -> Outcome:
        """What is over, or runs by somebody else's doing, needs no reason of ours."""
        state = (await self._sandboxes.get(sandbox_id)).state
        return Outcome(self._name, state, why[:MAX_WHY_CHARS] if state in ASLEEP else None)

    async def _settle(self, sandbox_id: str, drain: str, outcome: Outcome) -> None:
        """It is told before it is forgotten: who was drained waits for it."""
        told = {"sandbox": sandbox_id, "drain": drain, "state": outcome.state, "why": outcome.why}
        log.log(logging.INFO if outcome.state == State.RUNNING else logging.WARNING, "after a drain", extra=told)
        self.told[sandbox_id] = outcome
        if self._outcomes is not None:
            await self._tell(self._outcomes, sandbox_id, drain, outcome)
        now_ms = self._sandboxes.now_ms()
        settle = partial(drains.settle, sandbox_id=sandbox_id, why=outcome.why, now_ms=now_ms)
        await self._ledger.write(settle)

    async def _tell(self, outcomes: Outcomes, sandbox_id: str, drain: str, outcome: Outcome) -> None:
        for attempt in range(TRIES):
            try:
                await outcomes.put(drain, sandbox_id, outcome)
                return
            except WarrenError as error:  # it is news, and no more
                log.warning("a drained host is not told", extra={"sandbox": sandbox_id, "why": str(error)})
                await asyncio.sleep(attempt)
