"""Hibernation: from this host's disk into the store, and back. The ledger says at every moment where a sandbox is.

- `paused`: its machine is whole on this host. What is in the store for it is not, or not any more: it is noted as a
  leftover, before the first byte goes there and in the commit that says `paused` again, and it is swept away.
- `hibernated`: its machine is whole in the store, and was read back from there. What is left of it on this host is
  superfluous: it is removed before it is brought back, and by the next start of the daemon.

So a failure, a cancellation or a kill at any step has nothing to undo that could be lost.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from functools import partial

from contract.errors import NotFound, WarrenError, WrongState
from contract.models import FILES, MACHINE, Caller, Hibernated, Sandbox
from contract.states import Event
from poold.hibernate import Depot, Drive
from poold.ledger import leftovers, sandboxes
from poold.ledger.driver import Connection
from poold.lifetimes import beside, finish
from poold.sandboxes import files_alone
from poold.sandboxes.means import Live, Means
from poold.sandboxes.owed import Owed
from poold.sandboxes.stoppable import Stoppable
from poold.sandboxes.telling import Progress
from poold.sandboxes.why import STOPPING, exists
from poold.steps import Step, run_steps

log = logging.getLogger("poold.sandboxes")

SWEEP_S = 3600.0
REST_S = 300.0  # after a hibernation that failed: all of it may have to be sent again
RETRY_S = 60.0  # after a sweep that failed: the store may be away


def _take_over(db: Connection, sandbox: Sandbox, *, now_ms: int, request: str | None) -> Sandbox:
    try:
        here = sandboxes.get(db, sandbox.id)
    except NotFound:
        return sandboxes.take_over(db, sandbox, now_ms=now_ms, request=request)
    if here.hibernated != sandbox.hibernated:
        raise exists(here)
    return here


class Hibernation:
    """Open as a block: after it nothing is under way. Who calls has the sandbox's turn, and waits for the end."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._work = Stoppable()
        self._to_sweep = asyncio.Event()
        self._failed: set[str] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What is left over in the store is removed during the block, now and then and when there is something."""
        async with beside(self._keep_sweeping()):
            yield

    def stop(self) -> None:
        """End what is under way: everything is where it was, and the next daemon may begin again."""
        self.give_up(STOPPING)

    def give_up(self, why: str | None) -> None:
        """End what is under way, and begin nothing, for `why`: everything is where it was. With None: begin again."""
        self._work.give_up(why)

    def depot(self, sandbox_id: str, kind: str = MACHINE) -> Depot:
        """Where this host puts machines, or files alone. `WrongState` if it cannot take them from a machine."""
        depot, engine = self._means.depot, self._means.pool.engine
        if depot is None or (kind == MACHINE and not engine.can_save):
            raise WrongState(f"the {engine.name} engine of this host cannot hibernate a sandbox", sandbox=sandbox_id)
        return depot

    @contextlib.contextmanager
    def resting(self, sandbox_id: str) -> Iterator[None]:
        """What fails in the block is not tried again by itself at once."""
        self._failed.add(sandbox_id)
        yield
        self._failed.discard(sandbox_id)

    async def put(self, sandbox: Sandbox, caller: Caller, why: str) -> Sandbox:
        """Put a paused sandbox into the store and free its disk. If this fails before that is written, it is paused."""
        with self.resting(sandbox.id), self._means.timing(self._means.metrics.hibernate_seconds):
            hibernated = await self._work.do(self._put(sandbox, caller, why))
        with contextlib.suppress(WarrenError):  # it is tried again, and said, by who ends machines
            await self._means.pool.remove(sandbox.machine or "")
        return hibernated

    async def put_files(self, live: Live, caller: Caller, why: str) -> Sandbox:
        """Put the files of a running sandbox into the store. If this fails before that is written, it runs on."""
        depot = self.depot(live.sandbox.id, FILES)
        try:
            with self.resting(live.sandbox.id), self._means.timing(self._means.metrics.hibernate_seconds):
                return await self._work.do(files_alone.put(self._means, depot, live, caller, why))
        except BaseException:
            self.sweep_soon()
            raise

    async def bring_back(self, sandbox: Sandbox, owed: Owed, caller: Caller) -> Live:
        """Another machine for a sandbox of which the store has the files. If this fails, they are there as before."""
        depot = self.depot(sandbox.id, FILES)
        with self._means.timing(self._means.metrics.fetch_seconds):
            live = await self._work.do(files_alone.bring_back(self._means, owed, depot, sandbox, caller))
        self.sweep_soon()
        return live

    async def fetch(self, sandbox: Sandbox, caller: Caller) -> Sandbox:
        """Bring a hibernated sandbox to this host's disk, paused. If this fails, it is in the store as it was."""
        with self._means.timing(self._means.metrics.fetch_seconds):
            paused = await self._work.do(self._fetch(sandbox, caller))
        self._to_sweep.set()
        return paused

    async def import_hibernated(self, key: str, caller: Caller) -> Sandbox:
        """Take over a sandbox that another host put into the store, and has given up. Its manifest is under `key`.

        Twice changes nothing. Raises `Exists` if this host has had a sandbox of that id otherwise.
        """
        sandbox = await self.depot(key, FILES).sandbox_of(key)
        now_ms = self._means.sources.now_ms()
        write = partial(_take_over, sandbox=sandbox, now_ms=now_ms, request=caller.request)
        return await finish(self._means.ledger.write(write))

    async def drive(self, sandbox: Sandbox) -> Drive:
        """What can be read of the disk of a hibernated sandbox."""
        if sandbox.hibernated is None:
            raise WrongState(f"sandbox {sandbox.id} is {sandbox.state}, not in the store", state=sandbox.state)
        return await self.depot(sandbox.id, sandbox.hibernated.kind).drive(sandbox.hibernated)

    def rests_s(self, sandbox_id: str) -> float:
        """How long to wait before what should come by itself is tried again. Of each failure this tells once."""
        if sandbox_id not in self._failed:
            return 0.0
        self._failed.discard(sandbox_id)
        return REST_S

    def sweep_soon(self) -> None:
        """Somebody may have left something in the store."""
        self._to_sweep.set()

    async def _put(self, sandbox: Sandbox, caller: Caller, why: str) -> Sandbox:
        means, depot = self._means, self.depot(sandbox.id)
        prefix, at_ms = depot.new_place(sandbox), means.sources.now_ms()
        found: list[Hibernated] = []
        done: list[Sandbox] = []

        async def put() -> None:
            found.append(await depot.put(sandbox, prefix, at_ms, Progress(means, sandbox.id, "hibernating")))

        async def write() -> None:
            detail = {"why": why, "bytes": found[0].bytes}
            done.append(await means.move(sandbox.id, Event.HIBERNATE, caller, hibernated=found[0], detail=detail))

        async def sweep(_error: BaseException) -> None:
            self.sweep_soon()

        note = partial(leftovers.add, prefix=prefix, now_ms=at_ms)
        steps = [
            Step("note", lambda: means.ledger.write(note), sweep),
            Step("put", put),
            Step("write", write),
        ]
        with depot.writing(prefix):
            await run_steps("hibernate", sandbox.id, steps)
        return done[0]

    async def _fetch(self, sandbox: Sandbox, caller: Caller) -> Sandbox:
        means, depot = self._means, self.depot(sandbox.id)
        machine_id, found = sandbox.machine or "", sandbox.hibernated
        if found is None:
            raise WrongState(f"sandbox {sandbox.id} is not in the store", sandbox=sandbox.id)

        async def remove(_error: BaseException | None = None) -> None:
            await means.pool.remove(machine_id)

        async def fetch() -> None:
            await depot.fetch(sandbox, found, Progress(means, sandbox.id, "fetching"))

        await run_steps("fetch", sandbox.id, [Step("clear", remove), Step("plant", fetch, remove)])
        # Whatever comes of this: what was planted stays. It is the sandbox's if this is written, and in nobody's way if
        # it is not.
        return await finish(means.move(sandbox.id, Event.FETCH, caller, detail={"bytes": found.bytes}))

    async def _keep_sweeping(self) -> None:
        while self._means.depot is not None:
            self._to_sweep.clear()
            wait_s = SWEEP_S
            try:
                await self._sweep(self._means.depot)
            except WarrenError as error:
                log.warning("what is left over in the store was not removed", extra={"why": str(error)})
                wait_s = RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._to_sweep.wait()

    async def _sweep(self, depot: Depot) -> None:
        """Remove what belongs to nobody. What is being written just now is looked at the next time."""
        ledger = self._means.ledger
        left = await ledger.read(leftovers.listed)
        if left:
            await ledger.covered()  # else a successor might look for a sandbox there
        for prefix in left:
            # Who has written it to its end has made it a sandbox's since: what is not being written is asked for anew.
            if depot.is_writing(prefix) or prefix not in await ledger.read(leftovers.listed):
                continue
            if await depot.remove(prefix):
                await ledger.write(partial(leftovers.drop, prefix=prefix), durable=False)
