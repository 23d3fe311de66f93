"""All sandboxes of this host. One operation at a time on each; what happens by itself is a timer for each."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial

from contract.egress import Open
from contract.errors import CapacityError, NotFound, NotMine, WarrenError, WrongState
from contract.ids import new_id
from contract.models import Caller, CreateSandbox, Sandbox
from contract.states import ASLEEP, Event, State
from poold.errors import Draining, MachineDied
from poold.ledger import sandboxes
from poold.ledger.driver import Connection
from poold.lifetimes import finish
from poold.link import Guest
from poold.sandboxes import operations, timeline
from poold.sandboxes.asked import new_sandbox, shape_of
from poold.sandboxes.ending import Ending
from poold.sandboxes.lifecycle import following
from poold.sandboxes.means import Defaults, Live, Means
from poold.sandboxes.owed import Owed
from poold.sandboxes.rules import OwnersRules
from poold.sandboxes.settings import BY_ITSELF
from poold.sandboxes.timers import Timers
from poold.sandboxes.turns import Creations, Making, Turns
from poold.sandboxes.why import DRAINING, STOPPING, WHY, exists, not_running

log = logging.getLogger("poold.sandboxes")

RETRY_S = 5.0  # after a step that should have come by itself and failed


class Sandboxes(Ending):
    """Open as a block: after it nothing is under way any more, and running sandboxes go on without us."""

    def __init__(self, means: Means, defaults: Defaults) -> None:
        super().__init__(means)
        self._defaults = defaults
        self.network = means.network
        self._live: dict[str, Live] = {}
        self._timers = Timers(lambda sandbox_id: self._tasks.create_task(self._act(sandbox_id)))
        self._owed = Owed(means, self._again)
        self.rules = OwnersRules(means, defaults.rules)
        self._turns = Turns()
        self.repeats = Turns()  # of requests to create the same sandbox
        self.creations = Creations()
        self._stopping = False
        self.is_draining = False
        self._tasks = asyncio.TaskGroup()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Sandboxes"]:
        async with self._tasks, self.hibernation.running(), self.workspaces.running():
            try:
                yield self
            finally:
                await finish(self.stop())

    async def stop(self) -> None:
        """Begin nothing any more, let what is under way come to its end, and let go of every machine."""
        self._stopping = True
        self.creations.end(CapacityError(STOPPING))
        self._timers.stop()
        self.hibernation.stop()
        self.workspaces.stop()
        await self._turns.all_over()
        for sandbox_id in list(self._live):
            if (live := self._forget(sandbox_id)) is not None:  # its machine runs on, and the next daemon finds it
                live.place.hang_up(CapacityError(STOPPING))

    # What callers ask for.

    async def create(
        self, request: CreateSandbox, caller: Caller = BY_ITSELF, sandbox_id: str | None = None
    ) -> Sandbox:
        """A running sandbox whose guest has answered. If this raises or is cancelled, nothing runs for it.

        Its id is `sandbox_id`, or a new one. If there was one of that id before, this raises `Exists`.
        """
        self._may_begin()
        name = sandbox_id or new_id("sb", self._means.sources.entropy)
        with self._means.claiming():
            shape = shape_of(self._means, request, self._defaults.image)
            rules = await self.rules.of(request, caller)
            async with self._turns.of(name), self.creations.under_way(name, Making(caller.owner, shape)):
                if sandbox_id is not None:
                    await self._must_be_new(name)
                found = await self.workspaces.asked(request, caller.owner)
                kept = None if found is None else found.workspace
                sandbox = new_sandbox(self._means, request, shape, caller, rules, sandbox_id=name, workspace=kept)
                fill = self.workspaces.filling(sandbox, found)
                live = await operations.create(self._means, self._owed, sandbox, request, caller, fill)
                self._watch(live)
        return self._with_next(live.sandbox)

    async def get(self, sandbox_id: str) -> Sandbox:
        return self._with_next(await self._means.ledger.read(lambda db: sandboxes.get(db, sandbox_id)))

    async def owner_of(self, sandbox_id: str) -> str:
        """Whose sandbox it is, or `NotMine` if it was never here. Of one that runs, this needs no file."""
        live = self._live.get(sandbox_id)
        owner = self.creations.owner_of(sandbox_id) if live is None else live.sandbox.owner
        if owner is not None:
            return owner
        try:
            return (await self.get(sandbox_id)).owner
        except NotFound:
            raise NotMine(f"no sandbox {sandbox_id!r} was ever on this host", sandbox=sandbox_id) from None

    async def listed(self, question: Callable[[Connection], list[Sandbox]]) -> list[Sandbox]:
        """What the ledger answers, each sandbox with what will happen to it next."""
        return [self._with_next(sandbox) for sandbox in await self._means.ledger.read(question)]

    async def peek(self, sandbox_id: str) -> Guest:
        """The guest of a running sandbox, for a question that is no use of it. Or an error that says why not."""
        live = self._live.get(sandbox_id)
        if live is None:
            raise not_running(await self.get(sandbox_id))
        return live.guest

    @contextlib.asynccontextmanager
    async def use(self, sandbox_id: str, caller: Caller = BY_ITSELF) -> AsyncIterator[Guest]:
        """The guest of a running sandbox during the block, in which it is not idle. Or an error that says why not."""
        live = await self._awake(sandbox_id, caller)
        live.users += 1
        try:
            yield live.guest
        finally:
            live.users -= 1
            live.active_ms = self.now_ms()
            if self._live.get(sandbox_id) is live:
                self._arm(live.sandbox)

    async def pause(self, sandbox_id: str, caller: Caller = BY_ITSELF, why: str = "by request") -> Sandbox:
        """Save the sandbox to disk and free its memory. Pausing a paused one changes nothing, but that a drain does not
        bring it back, which may have put it into the store just now.
        """
        async with self._turns.of(sandbox_id):
            live = self._live.get(sandbox_id)
            if live is None:
                sandbox = await self._settled(sandbox_id)
                was_drained = await self._let_sleep(sandbox, caller)
                if sandbox.state is State.PAUSED or was_drained:
                    return sandbox
                raise not_running(sandbox)
            return await finish(self._pause(live, caller, why))

    async def resume(self, sandbox_id: str, caller: Caller = BY_ITSELF) -> Sandbox:
        """Bring the sandbox back. Resuming a running one changes nothing."""
        self._may_begin()
        async with self._turns.of(sandbox_id):
            sandbox = await self._settled(sandbox_id)
            if sandbox_id in self._live:
                return sandbox
            if sandbox.state not in ASLEEP:
                raise WrongState(f"cannot resume a sandbox that is {sandbox.state}", state=sandbox.state)
            return await finish(self._resume(sandbox, caller))

    async def at_rest(self, sandbox_id: str) -> None:
        """Return when nothing is under way with the sandbox: of one that is over, all has been written down then."""
        async with self._turns.of(sandbox_id):
            pass

    def connections(self, sandbox_id: str) -> list[Open]:
        """The connections of a running sandbox that are under way."""
        return self._live[sandbox_id].connections() if sandbox_id in self._live else []

    async def _change(self, sandbox_id: str, change: Callable[..., Sandbox], caller: Caller) -> Sandbox:
        async with self._turns.of(sandbox_id):
            return await finish(self._write(sandbox_id, change, caller))

    async def _write(self, sandbox_id: str, change: Callable[..., Sandbox], caller: Caller) -> Sandbox:
        """Once it is written it counts, so its timer follows: nobody may be cut off between the two."""
        await self._owed.pay(sandbox_id)
        write = partial(change, sandbox_id=sandbox_id, now_ms=self.now_ms(), request=caller.request)
        sandbox = await self._means.ledger.write(write)
        if (live := self._live.get(sandbox_id)) is not None:
            if sandbox.network != live.sandbox.network:
                await live.place.tell(self._means.rule_of(sandbox))
            live.sandbox = sandbox
        self._arm(sandbox)
        return self._with_next(sandbox)

    # What recovery and the operator ask for.

    def adopt(self, live: Live) -> None:
        """A machine that a former daemon left is ours from now on."""
        self._watch(live)

    def wait_for(self, sandbox: Sandbox) -> None:
        """A paused sandbox's next step comes in its time."""
        self._arm(sandbox)

    def machines(self) -> list[Live]:
        """Every sandbox that has a machine now."""
        return list(self._live.values())

    async def close(self) -> None:
        """Take nothing new. What is being created is given up, what is being resumed or put to sleep is waited for."""
        self.is_draining = True
        self.creations.end(Draining(DRAINING, retry_after_s=60))
        await self._turns.all_over()

    async def give_up(self, sandbox_id: str, reason: str) -> None:
        """The sandbox is over, as if its machine had failed: a task that has it goes on from its last checkpoint."""
        async with self._turns.of(sandbox_id):
            told = (await self.get(sandbox_id)).lost(reason)
            sandbox = await self._means.move(sandbox_id, Event.FAIL, BY_ITSELF, reason=told)
            await finish(self._free(sandbox, MachineDied(reason)))

    # How it is done.

    def _may_begin(self) -> None:
        if self._stopping:
            raise CapacityError(STOPPING)
        if self.is_draining:
            raise Draining(DRAINING, retry_after_s=60)

    async def _must_be_new(self, sandbox_id: str) -> None:
        """In the sandbox's turn: nobody else can create it meanwhile."""
        self._may_begin()  # whoever had the turn before may have taken long
        with contextlib.suppress(NotFound):
            raise exists(await self.get(sandbox_id))

    async def _awake(self, sandbox_id: str, caller: Caller) -> Live:
        """The running sandbox; one that is paused is resumed if that is its rule."""
        while (live := self._live.get(sandbox_id)) is None:
            async with self._turns.of(sandbox_id):  # it may just be being started, or paused
                sandbox = await self._settled(sandbox_id)
            if sandbox.state in ASLEEP and sandbox.rules.auto_resume:
                await self.resume(sandbox_id, caller)
            elif sandbox_id not in self._live:
                raise not_running(sandbox)
        return live

    async def _pause(self, live: Live, caller: Caller, why: str) -> Sandbox:
        sandbox_id = live.sandbox.id
        await self.workspaces.save_before_sleep(live)
        # From here on an end of its machine is ours to tell of. `operations.pause` fails if it comes too early.
        del self._live[sandbox_id]
        live.stop_listening()
        try:
            with self._means.timing(self._means.metrics.pause_seconds):
                sandbox = await operations.pause(self._means, self._owed, live, caller, why)
        except BaseException:
            if live.place.machine is not None:  # it was not given up
                live.rests_until_ms = self.now_ms() + round(1000 * RETRY_S)
                self._watch(live)
            raise
        self._arm(sandbox)
        return self._with_next(sandbox)

    def _watch(self, live: Live) -> None:
        """From now on the sandbox ends with its machine, and what its rules say happens in its time."""
        sandbox_id = live.sandbox.id
        self._live[sandbox_id] = live
        listening = timeline.listen(live.guest, self._means.ledger, sandbox_id, self._means.sources.now_ms)
        live.listening = self._tasks.create_task(listening)
        if live.sandbox.is_kept:
            live.keeping = self._tasks.create_task(self.workspaces.keep_saving(live))
        if live.place.machine is not None:
            ended = live.place.machine.ended
            ended.add_done_callback(lambda ended: self._ended(live, f"its machine ended: {ended.result()}"))
        self._arm(live.sandbox)

    def _ended(self, live: Live, reason: str) -> None:
        if self._live.get(live.sandbox.id) is live and not self._stopping:
            self._tasks.create_task(self._fail(live, reason))

    async def _fail(self, live: Live, reason: str) -> None:
        sandbox_id = live.sandbox.id
        try:
            async with self._turns.of(sandbox_id):
                if self._live.get(sandbox_id) is live:  # it may have been stopped at the same moment
                    log.warning("sandbox failed", extra={"sandbox": sandbox_id, "why": reason})
                    with contextlib.suppress(WrongState):
                        await self._means.move(sandbox_id, Event.FAIL, BY_ITSELF, reason=live.sandbox.lost(reason))
                    await finish(self._free(live.sandbox, MachineDied(reason)))
        except WarrenError as error:
            log.error("a sandbox that failed was not cleared away", extra={"sandbox": sandbox_id, "why": str(error)})
            asyncio.get_running_loop().call_later(RETRY_S, self._ended, live, reason)

    async def _free(self, sandbox: Sandbox, error: WarrenError) -> None:
        """Give back all that the sandbox uses. What fails the pool tries again, and so may whoever comes next."""
        live = self._forget(sandbox.id)
        if live is not None:
            await self._means.pool.release(live.place, error)
        elif sandbox.machine is not None:
            await self._means.pool.remove(sandbox.machine)

    def _forget(self, sandbox_id: str) -> Live | None:
        self._timers.clear(sandbox_id)
        self._owed.forget(sandbox_id)
        self.workspaces.forget(sandbox_id)
        live = self._live.pop(sandbox_id, None)
        if live is not None:
            live.stop_listening()
        return live

    async def _settled(self, sandbox_id: str) -> Sandbox:
        """In its turn: the sandbox as it is, with what an undo could not write down."""
        await self._owed.pay(sandbox_id)
        return await self.get(sandbox_id)

    # What happens by itself.

    def _with_next(self, sandbox: Sandbox) -> Sandbox:
        live = self._live.get(sandbox.id)
        activity = None if live is None else live.activity
        return replace(sandbox, next=following(sandbox, activity, now_ms=self.now_ms()))

    def _arm(self, sandbox: Sandbox) -> None:
        """Look at the sandbox again when its next step is due."""
        step, live = self._with_next(sandbox).next, self._live.get(sandbox.id)
        if step is None:
            self._timers.clear(sandbox.id)
        else:
            at_ms = step.at_ms if live is None else max(step.at_ms, live.rests_until_ms)
            self._timers.set(sandbox.id, (at_ms - self.now_ms()) / 1000)

    def _again(self, sandbox_id: str, after_s: float = RETRY_S) -> None:
        """Look at the sandbox again soon: something that has to be could not be."""
        self._timers.set(sandbox_id, after_s)

    async def _act(self, sandbox_id: str) -> None:
        """Do what is due. If it cannot be done now, try again: a deadline that passed is not forgotten."""
        try:
            await self._hear(sandbox_id)
            async with self._turns.of(sandbox_id):
                await finish(self._do(sandbox_id))
        except (WrongState, NotFound):
            pass  # it failed or was stopped at the same moment
        except WarrenError as error:
            log.error("a step that was due failed", extra={"sandbox": sandbox_id, "why": str(error)})
            rests_s = max(self.hibernation.rests_s(sandbox_id), self.workspaces.rests_s(sandbox_id))
            self._again(sandbox_id, max(RETRY_S, rests_s))

    async def _hear(self, sandbox_id: str) -> None:
        """Ask the guest of a sandbox that seems idle: only it knows of output that nobody reads."""
        live = self._live.get(sandbox_id)
        step = None if live is None else self._with_next(live.sandbox).next
        if live is not None and step is not None and step.why == "idle" and step.at_ms <= self.now_ms():
            await live.hear(self.now_ms())

    async def _do(self, sandbox_id: str) -> None:
        """In the sandbox's turn: what is due, if it still is. Its time may have been moved until just now."""
        sandbox, live = await self._settled(sandbox_id), self._live.get(sandbox_id)
        step = sandbox.next
        if self._stopping:
            return  # the next daemon sees to it
        if step is None or step.at_ms > self.now_ms():
            self._arm(sandbox)
        else:
            log.info("by itself", extra={"sandbox": sandbox_id, "action": step.action, "why": step.why})
            if step.action == "destroy":
                await self._save_at_end(sandbox_id, BY_ITSELF)
                await self._destroy(sandbox_id, BY_ITSELF, WHY[step.why])
            elif live is not None:
                await self._pause(live, BY_ITSELF, WHY[step.why])
            elif step.action == "hibernate":
                await self._hibernate(sandbox, BY_ITSELF, WHY[step.why], sandbox.rules.hibernate_kind)
