"""From a machine of this host to the store and back, as callers and rules ask for it: whole, or the files alone."""

import contextlib
from abc import abstractmethod
from functools import partial

from contract.errors import WarrenError
from contract.models import FILES, MACHINE, Caller, Sandbox
from contract.states import ASLEEP, State
from poold.errors import SandboxPaused
from poold.ledger import sandboxes
from poold.lifetimes import finish
from poold.sandboxes import operations
from poold.sandboxes.hibernation import Hibernation
from poold.sandboxes.means import Live, Means
from poold.sandboxes.owed import Owed
from poold.sandboxes.settings import BY_ITSELF, Settings
from poold.sandboxes.turns import Turns
from poold.sandboxes.why import not_running


class Sleeping(Settings):
    """Part of `Sandboxes`, which has the machines."""

    _live: dict[str, Live]
    _owed: Owed
    _turns: Turns

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self.hibernation = Hibernation(means)

    @abstractmethod
    async def _pause(self, live: Live, caller: Caller, why: str) -> Sandbox:
        """Save a running sandbox to disk, in its turn."""

    @abstractmethod
    async def _save_before_sleep(self, live: Live) -> None:
        """What of a running sandbox is kept under a name is saved, if it can be."""

    @abstractmethod
    async def _settled(self, sandbox_id: str) -> Sandbox:
        """In its turn: the sandbox as it is."""

    @abstractmethod
    def _watch(self, live: Live) -> None:
        """From now on the sandbox runs."""

    @abstractmethod
    def _arm(self, sandbox: Sandbox) -> None:
        """Look at the sandbox again when its next step is due."""

    @abstractmethod
    def _with_next(self, sandbox: Sandbox) -> Sandbox:
        """With what will happen to it by itself."""

    async def hibernate(
        self, sandbox_id: str, caller: Caller = BY_ITSELF, why: str = "by request", kind: str = MACHINE
    ) -> Sandbox:
        """Put the sandbox into the store, and free what it has here. One that is there already stays as it is.

        One that runs is paused first; of `files` alone, one that is paused is resumed first. If this fails, a running
        one of which only files were wanted runs, and any other is paused.
        """
        self.hibernation.depot(sandbox_id, kind)
        async with self._turns.of(sandbox_id):
            if (live := self._live.get(sandbox_id)) is not None and kind == MACHINE:
                await finish(self._pause(live, caller, why))
            sandbox = await self._settled(sandbox_id)
            if sandbox.state is State.HIBERNATED:
                await self._let_sleep(sandbox, caller)
                return sandbox
            if sandbox.state is not State.PAUSED and self._live.get(sandbox_id) is None:
                raise not_running(sandbox)
            return await finish(self._hibernate(sandbox, caller, why, kind))

    async def _let_sleep(self, sandbox: Sandbox, caller: Caller) -> bool:
        """One that is asleep stays so, if somebody asks for that. Whether a drain would have brought it back."""
        if caller.request is None or sandbox.state not in ASLEEP:
            return False
        return await self._means.ledger.write(partial(sandboxes.let_sleep, sandbox_id=sandbox.id))

    async def _hibernate(self, sandbox: Sandbox, caller: Caller, why: str, kind: str) -> Sandbox:
        if kind == FILES:
            hibernated = await self._hibernate_files(sandbox, caller, why)
        else:
            hibernated = await self.hibernation.put(sandbox, caller, why)
        self._arm(hibernated)
        return self._with_next(hibernated)

    async def _hibernate_files(self, sandbox: Sandbox, caller: Caller, why: str) -> Sandbox:
        was_paused = sandbox.id not in self._live
        if was_paused:
            with self.hibernation.resting(sandbox.id):
                await self._resume(sandbox, caller)
        await self._save_before_sleep(self._live[sandbox.id])
        # From here on an end of its machine is ours to tell of.
        live = self._live.pop(sandbox.id)
        live.stop_listening()
        try:
            hibernated = await self.hibernation.put_files(live, caller, why)
        except BaseException:
            self._watch(live)
            if was_paused:
                with contextlib.suppress(WarrenError):  # it runs on, and its own time ends it
                    await self._pause(live, caller, why)
            raise
        with contextlib.suppress(WarrenError):  # it is tried again, and said, by who ends machines
            error = SandboxPaused(f"sandbox {sandbox.id} was put into the store: {why}")
            await self._means.pool.release(live.place, error)
        return hibernated

    async def _resume(self, sandbox: Sandbox, caller: Caller) -> Sandbox:
        if sandbox.state is State.HIBERNATED and sandbox.hibernated is not None and sandbox.hibernated.kind == FILES:
            live = await self.hibernation.bring_back(sandbox, self._owed, caller)
        else:
            if sandbox.state is State.HIBERNATED:
                sandbox = await self.hibernation.fetch(sandbox, caller)
                self._arm(sandbox)
            with self._means.timing(self._means.metrics.resume_seconds):
                live = await operations.resume(self._means, self._owed, sandbox, caller)
        self._watch(live)
        return self._with_next(live.sandbox)
