"""Hosts of one cluster in one process: real leases, ledgers, pools, sandboxes and tasks on fake machines.

A machine's guest is known to all of them, as its memory is in the store. For the replica of a ledger there is a copy of
it. Leases are long, and what a host does about the leases of others it does whenever a test waits.
"""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from contract.fields import Fields
from contract.hosts import Host as Record
from contract.ids import new_id
from contract.models import Caller, CreateSandbox, ShapeLimits
from contract.ring import Room
from contract.states import State
from poold import reconcile
from poold.config import Config
from poold.drain import Asked, Departure, Drained, Returning
from poold.drain import Means as DrainMeans
from poold.drain.outcomes import Outcomes
from poold.drain.progress import Progress
from poold.engines import Machine
from poold.errors import Fenced
from poold.hibernate import Depot
from poold.images import HostImages
from poold.lease import wardens
from poold.lease.guard import Guard, Targets
from poold.lease.keeper import Keeper
from poold.lease.members import Lost, Members
from poold.lease.membership import Membership
from poold.lease.notes import Notes
from poold.lease.starting import Ground, acquire
from poold.ledger import Ledger, care, drains, sandboxes
from poold.ledger.covering import Replication
from poold.metrics import Metrics
from poold.pool import Places, Pool
from poold.sandboxes import Defaults, Means, Sandboxes, Sources, notes_in
from poold.seal import Seal, new_key
from poold.slots import PlainSlots, Slot
from poold.store import Store
from poold.store.folder import open_folder
from poold.takeover import Heir, carry_on
from poold.tasks import Tasks, Tools
from poold.tasks.escrow import Escrow
from poold.tasks.prices import Prices
from tests.unit.poold.poold_fake_engine import FakeEngine
from tests.unit.poold.poold_host import MACHINE_MB, nobody_listens, take_slot

LEASE_S = 600  # its warden would kill this process
LIMIT_S = 60.0
SLOTS = 8
RETURN_S = 1.0  # for room
KEY = new_key()
LIMITS = ShapeLimits(4, 4096, 20_480)


class SharedEngine(FakeEngine):
    """Machines of many hosts: none runs on two of them."""

    def __init__(self, folder: Path, all_of: list["SharedEngine"]) -> None:
        super().__init__(folder)
        self._all = all_of
        if all_of:
            self.guests = all_of[0].guests
        all_of.append(self)

    def _start(self, machine_id: str, slot: Slot, guest: object = None) -> Machine:
        for other in self._all:
            running = other.machines.get(machine_id)
            assert other is self or running is None or running.ended.done(), "a machine runs on two hosts"
        return super()._start(machine_id, slot, guest)  # type: ignore[arg-type]


@dataclass
class Member:
    """One host, while its daemon runs."""

    name: str
    engine: SharedEngine
    ledger: Ledger
    host: Sandboxes
    tasks: Tasks
    pool: Pool
    keeper: Keeper
    members: Members
    returning: Returning
    departure: Departure
    drained: Drained
    metrics: Metrics

    async def create(self, **fields: object) -> str:
        asked = CreateSandbox.read(Fields({"image": "host", **fields}), LIMITS)
        return (await self.host.create(asked)).id

    async def states(self) -> dict[str, str]:
        found = await self.ledger.read(lambda db: db.execute("SELECT id, state FROM sandboxes").fetchall())
        return {row[0]: row[1] for row in found}

    async def drain(self, **asked: object) -> Progress:
        return await self.departure.begin(Asked(**asked), Caller())  # type: ignore[arg-type]

    async def look(self) -> None:
        """Do what there is to be done about other hosts' leases."""
        with contextlib.suppress(ExceptionGroup):
            await self.members.look()
        await self.members.act()


@dataclass
class Cluster:
    """What hosts share."""

    folder: Path
    store: Store
    engines: list[SharedEngine]

    @contextlib.asynccontextmanager
    async def member(
        self, name: str, *, slots: int = SLOTS, store: Store | None = None, engine: SharedEngine | None = None
    ) -> AsyncIterator[Member]:
        """A host as a daemon is one. A folder that was there before is gone on with."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        machine = engine or SharedEngine(self.folder / f"{name}.fakes", self.engines)
        guard = Guard(folder / "lease")
        try:
            async with contextlib.AsyncExitStack() as stack:
                daemon = _Daemon(self, name, store=store or self.store, engine=machine, slots=slots)
                yield await daemon.open(stack)
        finally:
            machine.close()
            wardens.dismiss(guard)


class _Daemon:
    """The beginning of `poold.daemon`, on a fake engine."""

    def __init__(self, cluster: Cluster, name: str, *, store: Store, engine: SharedEngine, slots: int) -> None:
        folder = self.folder = cluster.folder / name
        self.cluster, self.name, self.store, self.engine = cluster, name, store, engine
        self.slots = PlainSlots(slots, uid=os.getuid())
        self.count = slots
        self.now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
        self.config = Config.from_environment(
            {"POOLD_ENGINE": "local", "POOLD_STATE_DIR": str(folder), "POOLD_RUN_DIR": str(folder)},
            host_memory_mb=16_384,
            host_cpus=2,
            hostname=name,
        )

    async def open(self, stack: contextlib.AsyncExitStack) -> Member:
        folder, engine, metrics = self.folder, self.engine, Metrics()
        keeper = await self._keeper(stack)
        cover = self._cover(keeper)
        way = Replication(cover, False, check=keeper.check)
        ledger = await stack.enter_async_context(Ledger.open(folder / "ledger.db", replication=way))
        pool = self._pool(keeper)
        sources = Sources(self.now_ms, time.time_ns, os.urandom)
        notes = notes_in(ledger, self.now_ms)
        images = HostImages()
        depot = Depot(self.store, engine, images, folder / "goldens", cluster="c", notes=notes, entropy=os.urandom)
        means = Means(ledger, pool, images, sources, metrics, depot=depot)
        todo = reconcile.plan(await ledger.read(sandboxes.alive), engine.found(), base_uid=0)
        recovery = await reconcile.clear(todo, engine, ledger, now_ms=self.now_ms())
        await stack.enter_async_context(pool.running())
        host = await stack.enter_async_context(Sandboxes(means, Defaults("host", self.config.rules)).running())
        drained, row = Drained(folder), await ledger.read(drains.under_way)
        host.is_draining = bool(drained) or row is not None
        await reconcile.take_over(todo, means, host, lambda number: take_slot(self.slots, number), recovery)
        outcomes = Outcomes(self.store)
        returning = Returning(self.name, ledger, host, outcomes, room_s=RETURN_S)
        await stack.enter_async_context(returning.running())
        tools = Tools.make(
            means,
            host,
            self.config.tasks,
            Prices(),
            state_dir=folder,
            image="host",
            store=self.store,
            escrow=Escrow(self.store, Seal(KEY), "c"),
        )
        tasks = await stack.enter_async_context(
            Tasks(tools, nobody_listens, lambda: 0.0).running(halted=row is not None)
        )
        members = Members(self.store, keeper, take_over=self._take_over(ledger, host, tasks, returning))
        membership = Membership(keeper, members)
        drain = DrainMeans(
            self.name, ledger, host, tasks, pool, metrics, sources, drained, membership, self.store, cover
        )
        departure = Departure(drain, returning, row)
        keeper.record_from(self._record(host, pool))
        await keeper._renew()
        await stack.enter_async_context(departure.running())
        return Member(
            self.name, engine, ledger, host, tasks, pool, keeper, members, returning, departure, drained, metrics
        )

    async def _keeper(self, stack: contextlib.AsyncExitStack) -> Keeper:
        guard = stack.enter_context(Guard(self.folder / "lease").opened())
        ground = Ground(
            store=self.store,
            guard=guard,
            notes=Notes(self.folder),
            targets=Targets(marks=(("--mark", f"{self.folder}/"),)),
            record=Record(self.name, "http://127.0.0.1:1"),
            hold_ms=LEASE_S * 1000,
            ledger=self.folder / "ledger.db",
        )
        _, held = await acquire(ground)
        keeper = Keeper(ground, held)
        await stack.enter_async_context(keeper.holding())
        return keeper

    def _pool(self, keeper: Keeper) -> Pool:
        places = Places(
            self.slots, memory_budget_mb=self.count * MACHINE_MB, new_machine_id=lambda: new_id("vm", os.urandom)
        )
        return Pool(self.engine, HostImages(), places, sizes={}, gate=keeper.check)

    def _record(self, host: Sandboxes, pool: Pool) -> Callable[[], Awaitable[Record]]:
        async def record() -> Record:
            room = pool.places
            return Record(
                self.name,
                "http://127.0.0.1:1",
                slots=Room(self.count, room.free),
                memory_mb=Room(room.memory_budget_mb, room.memory_left_mb),
                images=await asyncio.to_thread(HostImages().shapes),
                draining=host.is_draining,
                ready=not host.is_draining,
            )

        return record

    def _cover(self, keeper: Keeper) -> Callable[[], Awaitable[None]]:
        async def cover() -> None:
            copy = self.cluster.folder / "replicas" / f"{self.name}-{keeper.epoch}.db"
            copy.parent.mkdir(exist_ok=True)
            beside = copy.with_suffix(f".{os.urandom(4).hex()}")
            await asyncio.to_thread(care.backup, self.folder / "ledger.db", beside)
            beside.rename(copy)

        return cover

    def _take_over(
        self, ledger: Ledger, host: Sandboxes, tasks: Tasks, returning: Returning
    ) -> Callable[[Lost], Awaitable[None]]:
        async def restore(lost: Lost, path: Path) -> int | None:
            for epoch in range(lost.last, lost.root - 1, -1):
                copy = self.cluster.folder / "replicas" / f"{lost.host}-{epoch}.db"
                if copy.exists():
                    shutil.copy(copy, path)
                    return epoch
            return None

        async def go_on(kind: str, one: str) -> None:
            if kind == "task":
                await tasks.adopt(one)
            else:
                host.wait_for(await host.get(one))
                await returning.add(one)

        heir = Heir(ledger, self.folder / "takeovers", restore, go_on, self.now_ms)

        async def take_over(lost: Lost) -> None:
            await carry_on(heir, lost)

        return take_over


@contextlib.asynccontextmanager
async def a_cluster(folder: Path) -> AsyncIterator[Cluster]:
    async with asyncio.timeout(2 * LIMIT_S), open_folder(folder / "store") as store:
        yield Cluster(folder, store, [])


async def all_of(progress: Progress) -> list[dict[str, object]]:
    """Everything that a drain tells, to its end, which is the last."""
    return [{"kind": told[0], **told[1]} async for told in progress.listen() if told is not None]


@contextlib.asynccontextmanager
async def looking(*members: Member) -> AsyncIterator[None]:
    """These look at the leases all the time during the block."""

    async def look() -> None:
        while True:
            for member in members:
                await member.look()
            await asyncio.sleep(0.05)

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextlib.contextmanager
def handed_over() -> Iterator[None]:
    """The block ends as a daemon does that has handed everything over."""
    with pytest.raises(BaseExceptionGroup) as ended:
        yield
    assert ended.value.subgroup(Fenced) is not None, ended.value


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            so = is_so()
            if asyncio.iscoroutine(so):
                so = await so
            if so:
                return
            await asyncio.sleep(0.02)


RUNNING, HIBERNATED = State.RUNNING.value, State.HIBERNATED.value
