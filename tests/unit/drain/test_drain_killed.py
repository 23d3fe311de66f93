"""A drain is cut off at every step: it goes on or never was, each sandbox runs on exactly one host, none is lost."""

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from drain_members import RUNNING, Cluster, Member, SharedEngine, a_cluster, all_of, looking, until

from poold.errors import LedgerError
from poold.ledger import care
from poold.store import Store
from poold.store.errors import Unreachable

FAULTS = 14  # those of them that can fail without an end of the daemon
STEPS = 24  # of a drain, counted generously: writes to the ledger, to leases and to what is told of it
ENGINE = ("pause", "resume", "save", "halt", "load", "discard", "parts", "planting", "plant", "destroy", "restore")
OURS = ("leases/", "drains/")


class Doom:
    """Counts what a host does, and kills it at one of these: nothing that it does afterwards has any effect.

    What was on its disk at that moment is kept, as the next daemon finds it.
    """

    is_deadly = True

    def __init__(self, at: int, folder: Path, engine: SharedEngine) -> None:
        self._at, self._folder, self._engine = at, folder, engine
        self._count = 0
        self.is_armed = False
        self.is_dead = False
        self.died = asyncio.Event()

    def step(self) -> None:
        if not self.is_armed:
            return
        self._count += 1
        if self._count == self._at:
            self._keep()
            self.is_dead = True
            self._engine.broken.update(ENGINE)
            self.died.set()
        if self.is_dead:
            raise Unreachable("this host was killed")

    def _keep(self) -> None:
        kept = self._folder.with_suffix(".kept")
        kept.mkdir()
        care.backup(self._folder / "ledger.db", kept / "ledger.db")
        for name in ("lease.json", "drained"):
            if (self._folder / name).exists():
                shutil.copy(self._folder / name, kept / name)

    def reborn(self) -> None:
        """The disk is as it was when the host was killed."""
        shutil.rmtree(self._folder)
        self._folder.with_suffix(".kept").rename(self._folder)
        self._engine.broken.clear()
        for machine in list(self._engine.machines):  # of processes that were told to end just then
            if self._engine.machines[machine].ended.done():
                del self._engine.machines[machine]


class DoomedStore:
    """A store as a host sees it that is killed before or after what it does."""

    def __init__(self, store: Store, doom: Doom) -> None:
        self._store, self._doom = store, doom

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("get", "put", "create", "replace", "delete", "write"):
            return found

        async def doomed(key: str, *rest: Any, **more: Any) -> Any:
            if self._doom.is_dead:
                raise Unreachable("this host was killed")
            counts = key.startswith(OURS) and name not in ("get", "write")
            if counts:
                self._doom.step()
            done = await found(key, *rest, **more)
            if counts:
                self._doom.step()
            return done

        return doomed


def doomed_write(member: Member, doom: Doom) -> Callable[..., Awaitable[Any]]:
    write = member.ledger.write

    async def doomed(work: Callable[[Any], Any], *, durable: bool = True) -> Any:
        try:
            doom.step()
            done = await write(work, durable=durable)
            if doom.is_deadly:  # a ledger that goes on tells what it has written
                doom.step()
        except Unreachable as error:
            raise LedgerError("writing", "a row", hint=str(error)) from None
        return done

    return doomed


async def killed(cluster: Cluster, other: Member, at: int, engine: SharedEngine) -> tuple[list[str], bool]:
    """Drain a host with two sandboxes and kill it at this step. Those that ran; whether it came to that step."""
    doom = Doom(at, cluster.folder / "a", engine)
    store: Any = DoomedStore(cluster.store, doom)
    running: list[str] = []
    with contextlib.suppress(BaseExceptionGroup, LedgerError, Unreachable):
        async with cluster.member("a", store=store, engine=engine) as member, looking(other):
            running.append(await member.create())
            await member.host.pause(await member.create())
            member.ledger.write = doomed_write(member, doom)  # type: ignore[method-assign]
            doom.is_armed = True
            with contextlib.suppress(LedgerError):
                await member.drain()
            await doom.died.wait()
            raise LedgerError("running", "a daemon", hint="it was killed")
    if doom.is_dead:
        doom.reborn()
    return running, doom.is_dead


async def settled(cluster: Cluster, other: Member, engine: SharedEngine, running: list[str]) -> str:
    """Start the host again, and as often as it starts anew. Where everything is in the end."""
    while True:
        with contextlib.suppress(BaseExceptionGroup):
            async with cluster.member("a", engine=engine) as member, looking(other):
                await until(lambda: where(member, other, running))
                found = await where(member, other, running)
                assert (found == "there") == bool(member.drained)
                here = {live.place.machine_id for live in member.host.machines()}
                alive = {machine.id for machine in engine.machines.values() if not machine.ended.done()}
                assert alive == (set() if found == "there" else here)
                return str(found)


async def where(member: Member, other: Member, running: list[str]) -> str | None:
    """At which host all of these run; None if it is not settled."""
    here, there = await member.states(), await other.states()
    if not here and all(there.get(name) == RUNNING for name in running):
        return "there"
    is_here = all(here.get(name) == RUNNING for name in running) and not member.host.is_draining
    return "here" if is_here and not there else None


class OneError(Doom):
    """Nobody dies: what it does at this step fails, once."""

    is_deadly = False

    def step(self) -> None:
        self._count += self.is_armed
        if self.is_armed and self._count == self._at:
            raise Unreachable("the store is away, or the disk full, for a moment")


@pytest.mark.parametrize("step", range(1, FAULTS + 1))
async def test_a_drain_in_which_any_step_fails_once_comes_to_its_end_or_is_undone(tmp_path: Path, step: int) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b") as other:
        engine = SharedEngine(tmp_path / "a.fakes", cluster.engines)
        doom = OneError(step, cluster.folder / "a", engine)
        store: Any = DoomedStore(cluster.store, doom)
        running: list[str] = []
        is_undone = False
        with contextlib.suppress(BaseExceptionGroup):
            async with cluster.member("a", store=store, engine=engine) as member, looking(other):
                running.append(await member.create())
                await member.host.pause(await member.create())
                member.ledger.write = doomed_write(member, doom)  # type: ignore[method-assign]
                doom.is_armed = True
                try:
                    is_undone = (await all_of(await member.drain()))[-1]["undone"] is not None
                except LedgerError:
                    is_undone = True  # it was never begun
                if not is_undone:
                    await asyncio.Event().wait()
                await until(lambda: where(member, other, running))
        assert await settled(cluster, other, engine, running) == ("here" if is_undone else "there")


@pytest.mark.parametrize("step", range(1, STEPS + 1))
async def test_a_drain_that_is_killed_at_any_step_goes_on_or_never_was(tmp_path: Path, step: int) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b") as other:
        engine = SharedEngine(tmp_path / "a.fakes", cluster.engines)
        running, was_killed = await killed(cluster, other, step, engine)
        where = await settled(cluster, other, engine, running)
        assert where == ("here" if was_killed and step == 1 else "there")
        assert other.engine.calls["load"] <= len(running)
