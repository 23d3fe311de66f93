"""The workspaces of sandboxes: what one begins with, and what is kept of it. The ledger is told.

A save needs no turn of its sandbox: it changes nothing in it. One at a time is under way for each. What it may leave
over in the store is in the ledger before the first byte is sent.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from contract.errors import WarrenError, WrongState
from contract.models import CreateSandbox, Sandbox
from contract.workspaces import Saved, Workspace, WorkspaceUnsaved
from poold.ledger import sandboxes
from poold.ledger import workspaces as ledger_of
from poold.ledger.driver import Connection
from poold.lifetimes import beside
from poold.link import Guest
from poold.sandboxes.means import Live, Means
from poold.sandboxes.stoppable import Stoppable
from poold.sandboxes.telling import Progress
from poold.sandboxes.why import stopped
from poold.workspaces import Manifest, Place, Shelf, of_owner, of_template, saving, sweeping, templates

log = logging.getLogger("poold.sandboxes")

REST_S = 30  # after an end that could not save
SWEEP_S = 3600.0
LATER_MS = sweeping.GRACE_MS + 3600 * 1000


@dataclass(frozen=True)
class Beginning:
    """What a sandbox's workspace is made from: a version, or nothing."""

    workspace: Workspace
    place: Place | None = None
    whole: Manifest | None = None


class Workspaces:
    """Open as a block: after it nothing is under way."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._work = Stoppable()
        self._unsaved: dict[str, str] = {}  # sandboxes that should have ended, and why they could not
        self._saving: dict[str, asyncio.Task[Any]] = {}
        self._abandoned: set[str] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What is left over in the store is removed during the block, in its time."""
        async with beside(self._keep_sweeping()):
            yield

    def stop(self) -> None:
        self._work.stop()

    @property
    def shelf(self) -> Shelf:
        if self._means.shelf is None:
            raise WrongState("this host has nowhere to keep workspaces")
        return self._means.shelf

    # What a sandbox begins with

    async def asked(self, request: CreateSandbox, owner: str) -> Beginning | None:
        """What the request asks for. Raises `BadField` if there is no such template, and `Damaged` or `Corrupt`."""
        if request.workspace is None and request.template is None:
            return None
        kept = Workspace(request.workspace, task=request.task)
        if request.workspace is not None:
            place = of_owner(owner, request.workspace)
            whole = await self.shelf.newest(place)
            if whole is not None:
                return Beginning(replace(kept, from_version=whole.version), place, whole)
        if request.template is None:
            return Beginning(kept)
        whole = await templates.get(self.shelf, request.template)
        return Beginning(replace(kept, template=request.template), of_template(request.template), whole)

    def filling(self, sandbox: Sandbox, beginning: Beginning | None) -> Callable[[Guest], Awaitable[None]]:
        """How the sandbox's workspace becomes what it begins with."""

        async def fill(guest: Guest) -> None:
            if beginning is not None and beginning.place is not None and beginning.whole is not None:
                tell = Progress(self._means, sandbox.id, "pulling")
                await saving.pull(self.shelf, guest, beginning.place, beginning.whole, tell)
                data = {**beginning.workspace.view(), "bytes": beginning.whole.size_bytes}
                await self._tell(sandbox.id, "workspace_pulled", data)

        return fill

    # What is kept of it

    async def save(self, live: Live, why: str) -> Saved:
        """Save the workspace of a running sandbox, unless nothing has changed. A caller that leaves does not end it."""
        if not live.sandbox.is_kept:
            raise WrongState(f"sandbox {live.sandbox.id} has no workspace: it was made without one")
        async with live.saving:
            try:
                return await self._work.do(self._tracked(live, why))
            except asyncio.CancelledError:
                if (
                    live.sandbox.id not in self._abandoned
                    or (task := asyncio.current_task()) is None
                    or task.cancelling()
                ):
                    raise
                raise stopped(live.sandbox.id, "what was not saved is discarded") from None

    def abandon(self, sandbox_id: str) -> None:
        """The sandbox is to end without being saved: a save that is under way is given up, and none is begun."""
        self._abandoned.add(sandbox_id)
        if (task := self._saving.get(sandbox_id)) is not None:
            task.cancel()

    def forget(self, sandbox_id: str) -> None:
        """Its end is over, whatever came of it."""
        self._unsaved.pop(sandbox_id, None)
        self._abandoned.discard(sandbox_id)

    async def _tracked(self, live: Live, why: str) -> Saved:
        name, task = live.sandbox.id, asyncio.current_task()
        if name in self._abandoned or task is None:
            raise stopped(name, "what was not saved is discarded")
        self._saving[name] = task
        try:
            return await self._save(live, why)
        finally:
            del self._saving[name]

    async def _save(self, live: Live, why: str) -> Saved:
        known, sandbox, now_ms = live.sandbox.workspace, live.sandbox, self._means.sources.now_ms()
        if known is None or known.name is None:
            raise WrongState(f"sandbox {sandbox.id} has no workspace")
        place = of_owner(sandbox.owner, known.name)
        due = partial(ledger_of.sweep_later, owner=sandbox.owner, name=known.name, due_ms=now_ms + LATER_MS)
        await self._means.ledger.write(due)
        mark = max(now_ms, (known.mark or 0) + 1)
        wish = saving.Wish(place, sandbox.id, mark, known.base, known.mark, task=known.task, template=known.template)
        tell = Progress(self._means, sandbox.id, "saving_workspace")
        found = await saving.save(self.shelf, live.guest, wish, tell)
        saved = known.saved_version if found.version == known.base else found.version
        after = replace(known, saved_version=saved, mark=found.mark, is_unsaved=False)
        told = {"name": known.name, "version": found.version, "why": why} if found.is_new else None
        await self._keep(live, after, "workspace_saved", told)
        self._unsaved.pop(sandbox.id, None)
        if found.is_new:
            await self._prune(place)
        return Saved(after.view(), found.version, found.is_new)

    async def save_before_sleep(self, live: Live) -> None:
        """What cannot be saved sleeps with its machine, and is saved before that ends."""
        known = live.sandbox.workspace
        if known is None or not live.sandbox.is_kept:
            return
        try:
            await self.save(live, "it was paused")
        except WarrenError as error:
            why = {"name": known.name, "why": error.message}
            await self._keep(live, replace(known, is_unsaved=True), "workspace_unsaved", why)

    async def save_at_end(self, live: Live) -> None:
        """Raises `WorkspaceUnsaved`, and then nothing may end."""
        if not live.sandbox.is_kept:
            return
        try:
            await self.save(live, "it ended")
        except WarrenError as error:
            raise await self.unsaved(live.sandbox, error) from error

    async def unsaved(self, sandbox: Sandbox, error: WarrenError) -> WorkspaceUnsaved:
        """An end waits, which is written down; what is told of it. The timeline has each reason once."""
        name = None if sandbox.workspace is None else sandbox.workspace.name
        if self._unsaved.get(sandbox.id) != error.message:
            self._unsaved[sandbox.id] = error.message
            await self._tell(sandbox.id, "workspace_unsaved", {"name": name, "why": error.message})
        soon_ms = self._means.sources.now_ms() + 1000 * REST_S
        await self._means.ledger.write(partial(ledger_of.end_soon, sandbox_id=sandbox.id, at_ms=soon_ms))
        return WorkspaceUnsaved(
            f"workspace {name!r} of sandbox {sandbox.id} could not be saved: {error.message}; the sandbox ends as soon"
            " as it can be. To end it now and lose what was not saved, ask for that with discard=1",
            retry_after_s=REST_S,
            sandbox=sandbox.id,
            workspace=name,
        )

    def rests_s(self, sandbox_id: str) -> float:
        """How long to wait before an end is tried again."""
        return REST_S if sandbox_id in self._unsaved else 0.0

    async def keep_saving(self, live: Live) -> None:
        """Now and then, until it is cancelled. What fails is tried again the next time."""
        every_s = 0 if self._means.shelf is None else self._means.shelf.limits.save_s
        known = live.sandbox.workspace
        if known is not None and known.task is not None:
            return  # a task has checkpoints, and is asked by no other for what has changed
        while every_s and live.sandbox.is_kept:
            await asyncio.sleep(every_s)
            try:
                await self.save(live, "while it ran")
            except WarrenError as error:
                log.warning("a workspace was not saved", extra={"sandbox": live.sandbox.id, "why": str(error)})

    async def _keep(self, live: Live, after: Workspace, kind: str, told: dict[str, Any] | None) -> None:
        at_ms = self._means.sources.now_ms()
        write = partial(_write, sandbox_id=live.sandbox.id, after=after, kind=kind, told=told, at_ms=at_ms)
        await self._means.ledger.write(write)
        live.sandbox = replace(live.sandbox, workspace=after)

    async def _tell(self, sandbox_id: str, kind: str, data: dict[str, Any]) -> None:
        at_ms = self._means.sources.now_ms()
        tell = partial(sandboxes.tell, sandbox_id=sandbox_id, kind=kind, data=data, at_ms=at_ms)
        await self._means.ledger.write(tell, durable=False)

    # What is given up

    async def delete(self, owner: str, name: str) -> int:
        """All versions of a workspace. What they were made of goes later."""
        now_ms = self._means.sources.now_ms()
        await self._means.ledger.write(partial(ledger_of.sweep_later, owner=owner, name=name, due_ms=now_ms + LATER_MS))
        return await self.shelf.delete(of_owner(owner, name))

    async def _prune(self, place: Place) -> None:
        try:
            await self.shelf.prune(place)
        except WarrenError as error:  # the next save tries again
            log.warning("old versions were not removed", extra={"workspace": place.prefix, "why": str(error)})

    async def _keep_sweeping(self) -> None:
        while self._means.shelf is not None:
            try:
                await self.sweep()
            except WarrenError as error:
                log.warning("what is left over of workspaces was not removed", extra={"why": str(error)})
            await asyncio.sleep(SWEEP_S)

    async def sweep(self) -> None:
        """Remove what belongs to no version, where it is time to look."""
        ledger, now_ms = self._means.ledger, self._means.sources.now_ms()
        for owner, name in await ledger.read(partial(ledger_of.due, now_ms=now_ms)):
            is_all = await sweeping.sweep(self.shelf, Place(owner or None, name))
            after = partial(ledger_of.swept) if is_all else partial(ledger_of.put_off, due_ms=now_ms + LATER_MS)
            await ledger.write(partial(after, owner=owner, name=name), durable=False)


def _write(  # noqa: PLR0917 — one change
    db: Connection, sandbox_id: str, after: Workspace, kind: str, told: dict[str, Any] | None, at_ms: int
) -> None:
    ledger_of.put(db, sandbox_id, after)
    if told is not None:
        sandboxes.tell(db, sandbox_id, kind, told, at_ms=at_ms)
