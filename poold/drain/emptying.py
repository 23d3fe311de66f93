"""The first half of a drain: everything of this host sleeps in the store. All of it can be undone."""

import asyncio
import contextlib
import logging
from functools import partial
from typing import Any

from contract.errors import NotFound, WarrenError
from contract.models import Sandbox
from contract.states import ASLEEP, LIVE, State
from poold.drain.means import Means
from poold.drain.progress import Progress
from poold.ledger import drains, sandboxes
from poold.ledger.drains import Row
from poold.lifetimes import finish

log = logging.getLogger("poold.drain")

AT_ONCE = 4  # each is read, packed and sent; more would only wait for the disk
TRIES = 2
AGAIN_S = 1.0
WHY = "the host was drained"
LATE = "the drain's time was over"


async def close(means: Means, row: Row) -> None:
    """Nothing new begins, nobody works on a task, no machine is warm; and what runs now is to run again."""
    await means.sandboxes.close()
    await means.tasks.halt()
    await means.sandboxes.close()  # what tasks were about to create
    await means.pool.keeper.close()
    await means.ledger.write(partial(drains.want, row=row))


async def open_again(means: Means) -> None:
    """Undoes `close`, but for who is wanted: that is for `Returning` to bring back."""
    means.sandboxes.hibernation.give_up(None)
    means.sandboxes.is_draining = False
    means.pool.keeper.open()
    await means.tasks.go_on()


class Emptying:
    """Puts all that is here into the store."""

    def __init__(self, means: Means, progress: Progress, end: asyncio.Event) -> None:
        """When `end` is set, what is not there yet stays as it is: here, paused or running."""
        self._means = means
        self._progress = progress
        self._end = end
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._left: dict[str, str] = {}

    async def run(self) -> dict[str, str]:
        """What is still here at the end, and why."""
        here = await self._means.ledger.read(sandboxes.alive)
        # What sleeps already is disturbed by nothing: so what runs is away for as short as it can be.
        here.sort(key=lambda sandbox: sandbox.state in LIVE)
        self._progress.tell("emptying", sandboxes=len(here), running=sum(each.state in LIVE for each in here))
        moving = [asyncio.create_task(self._move(sandbox)) for sandbox in here]
        ending: asyncio.Task[Any] = asyncio.create_task(self._end.wait())
        waiting: set[asyncio.Task[Any]] = set(moving)
        try:
            while waiting and not ending.done():
                _, waiting = await asyncio.wait({*waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
                waiting.discard(ending)
        finally:
            ending.cancel()
            await finish(self._stop(moving))
        for task in moving:
            if not task.cancelled():
                task.result()
        for sandbox in await self._means.ledger.read(sandboxes.alive):
            self._left.setdefault(sandbox.id, LATE)
        return self._left

    async def _stop(self, moving: "list[asyncio.Task[None]]") -> None:
        """What is being sent is given up: it is here as it was."""
        late = [task for task in moving if not task.done()]
        if late:
            hibernation = self._means.sandboxes.hibernation
            hibernation.give_up(LATE)
            for task in late:
                task.cancel()
            await asyncio.wait(late)
            hibernation.give_up(None)

    async def _move(self, sandbox: Sandbox) -> None:
        async with self._turn:
            why: str | None = None
            for attempt in range(TRIES if self._means.pool.engine.can_save else 1):
                why = await self._tried(sandbox)
                if why is None:
                    return
                log.warning("not moved yet", extra={"sandbox": sandbox.id, "why": why, "attempt": attempt + 1})
                await asyncio.sleep(AGAIN_S)
            self._left[sandbox.id] = why or LATE
            self._progress.tell("failed", sandbox.id, why=why)

    async def _tried(self, sandbox: Sandbox) -> str | None:
        """Why it is still here, if it is."""
        host, tell = self._means.sandboxes, self._progress.tell
        try:
            if (await host.get(sandbox.id)).state not in ASLEEP:
                tell("pausing", sandbox.id)
                await host.pause(sandbox.id, why=WHY)
            tell("hibernating", sandbox.id)
            moved = await host.hibernate(sandbox.id, why=WHY)
        except WarrenError as error:
            with contextlib.suppress(NotFound):
                state = (await host.get(sandbox.id)).state
                return error.message if state in LIVE or state is State.PAUSED else None  # it may have just ended
            return None
        tell("hibernated", sandbox.id, bytes=0 if moved.hibernated is None else moved.hibernated.bytes)
        return None
