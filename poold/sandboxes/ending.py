"""The end of a sandbox that was asked for, or whose time is up: nothing that was to be saved is thrown away for it."""

from abc import abstractmethod

from contract.errors import WarrenError, WrongState
from contract.models import Caller, Sandbox
from contract.states import ASLEEP, Event, State
from contract.workspaces import Saved, WorkspaceUnsaved
from poold.lifetimes import finish
from poold.sandboxes.means import Live, Means
from poold.sandboxes.settings import BY_ITSELF
from poold.sandboxes.sleeping import Sleeping
from poold.sandboxes.turns import Creations
from poold.sandboxes.why import stopped
from poold.sandboxes.workspaces import Workspaces


class Ending(Sleeping):
    """Part of `Sandboxes`, which has the machines."""

    creations: Creations

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self.workspaces = Workspaces(means)

    @abstractmethod
    async def get(self, sandbox_id: str) -> Sandbox:
        """The sandbox as the ledger has it, with what will happen to it by itself."""

    @abstractmethod
    async def _awake(self, sandbox_id: str, caller: Caller) -> Live:
        """The running sandbox; one that sleeps is resumed if that is its rule."""

    @abstractmethod
    async def _free(self, sandbox: Sandbox, error: WarrenError) -> None:
        """Give back all that the sandbox uses."""

    async def _save_before_sleep(self, live: Live) -> None:
        await self.workspaces.save_before_sleep(live)

    async def destroy(
        self,
        sandbox_id: str,
        caller: Caller = BY_ITSELF,
        reason: str = "destroyed by request",
        *,
        discard: bool = False,
    ) -> Sandbox:
        """Stop the sandbox and give back all that it used. Destroying a stopped one changes nothing.

        Its workspace is saved first. If that cannot be, this raises `WorkspaceUnsaved`, and the sandbox ends by itself
        once it can; with `discard` it ends as it is.
        """
        self.creations.end(stopped(sandbox_id, reason), sandbox_id)
        if discard:
            self.workspaces.abandon(sandbox_id)
        try:
            async with self._turns.of(sandbox_id):
                if not discard:
                    await finish(self._save_at_end(sandbox_id, caller))
                return await finish(self._destroy(sandbox_id, caller, reason))
        finally:
            if discard:
                self.workspaces.forget(sandbox_id)

    async def save_workspace(self, sandbox_id: str, caller: Caller = BY_ITSELF) -> Saved:
        """Save the files of a running sandbox under the name of its workspace."""
        return await self.workspaces.save(await self._awake(sandbox_id, caller), "by request")

    async def _save_at_end(self, sandbox_id: str, caller: Caller) -> None:
        """What sleeps and was not saved before is woken up for it. An end that has to wait is not forgotten."""
        try:
            await self._save_last(sandbox_id, caller)
        except WorkspaceUnsaved:
            await self._look_again(sandbox_id)
            raise

    async def _look_again(self, sandbox_id: str) -> None:
        sandbox = await self.get(sandbox_id)
        if (live := self._live.get(sandbox_id)) is not None:
            live.sandbox = sandbox
        self._arm(sandbox)

    async def _save_last(self, sandbox_id: str, caller: Caller) -> None:
        live = self._live.get(sandbox_id)
        sandbox = await self.get(sandbox_id) if live is None else live.sandbox
        if live is None and sandbox.state in ASLEEP and sandbox.workspace and sandbox.workspace.is_unsaved:
            try:
                await self._resume(sandbox, caller)
            except WarrenError as error:
                raise await self.workspaces.unsaved(sandbox, error) from error
            live = self._live.get(sandbox_id)
        if live is not None:
            await self.workspaces.save_at_end(live)

    async def _destroy(self, sandbox_id: str, caller: Caller, reason: str) -> Sandbox:
        try:
            sandbox = await self._means.move(sandbox_id, Event.STOP, caller, reason=reason)
        except WrongState:
            sandbox = await self.get(sandbox_id)
            if sandbox.state is not State.STOPPED:
                raise
        await self._free(sandbox, stopped(sandbox_id, reason))
        self.hibernation.sweep_soon()
        return sandbox
