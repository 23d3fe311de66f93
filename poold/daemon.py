"""Joins the rooms of the daemon, opens them in order, and closes them in the reverse order, whatever happens."""

import asyncio
import contextlib
import logging
import os
import random
import sys
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from functools import partial

from contract.__about__ import __version__
from contract.ids import new_id
from contract.states import Event
from poold import reconcile
from poold.api.observe import is_ready, measure, record
from poold.api.services import Facts, Services
from poold.api.tickets import Refusals, Tickets
from poold.cgroups import Cgroups, open_cgroups
from poold.cluster import alone, joined
from poold.config import Config
from poold.egress.proxies import Proxies
from poold.egress.proxy.dial import HostResolver, connect, is_own
from poold.egress.registries import Registries, read_registries
from poold.engines import Engine
from poold.engines.qemu import QemuEngine
from poold.engines.qemu.accel import UNTRIED, find_accel
from poold.errors import ConfigError, HostFault, NetError
from poold.images import HostImages, Images
from poold.lease import wardens
from poold.lease.members import Lost
from poold.ledger import Ledger, sandboxes
from poold.lifetimes import finish
from poold.metrics import Metrics
from poold.net import Slots as NetSlots
from poold.net import open_slots
from poold.opened import open_ledger
from poold.pool import Outfit, Places, Pool, Slots
from poold.pressure import Threshold, Thresholds
from poold.registry import Registry
from poold.sandboxes import Connections, Defaults, HostNetwork, Means, Sandboxes, Sources, open_depot
from poold.seal import Seal
from poold.serving import serving
from poold.slots import PlainSlots, Slot
from poold.store.opening import Shared
from poold.strain import Watch
from poold.takeover import Carrying, Heir, newest
from poold.tasks import Tasks, Tools
from poold.tasks.escrow import Escrow
from poold.tasks.posting import Ways, post
from poold.tasks.prices import read_prices
from poold.upkeep import upkeep

log = logging.getLogger("poold")

GUEST_CA = "/usr/local/share/ca-certificates/warren.crt"  # where a guest keeps whom it is told to trust


@dataclass
class Ground:
    """What machines stand on. The engine is there before the slots: it knows which of them are in use."""

    engine: Engine
    images: Images
    accel: str
    base_uid: int
    cgroups: Cgroups | None
    slots: Slots
    slot_of: Callable[[int], Slot | None]
    outfit: Outfit
    net: NetSlots | None = None

    def network(self) -> NetSlots:
        if self.net is None:
            raise NetError("reaching", "a slot", hint="the slots of this host are not open")
        return self.net


async def run(config: Config, sources: Sources, *, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Serve until `stop` is set. `ready` is called once requests are answered. Running sandboxes outlive this."""
    metrics = Metrics()
    clients = await asyncio.to_thread(_clients, config)
    carrying = Carrying()
    async with (
        joined(config, metrics, stop, restore=partial(_restore, config), take_over=carrying.take_over) as cluster,
        open_ledger(config, metrics, sources.now_ms, epoch=cluster.epoch) as opened,
        _ground(config, opened.ledger, sources, outfit=_outfit(config, clients)) as (ground, todo, recovery),
        _proxies(config, ground, Connections(opened.ledger, metrics, sources.now_ms), sources) as proxies,
        open_depot(
            config.state_dir, cluster.shared, ground.engine, ground.images, ledger=opened.ledger, sources=sources
        ) as depot,
    ):
        ledger, membership = opened.ledger, cluster.membership
        if membership.keeper is not None and ground.cgroups is not None:
            await membership.keeper.also_kill(ground.cgroups.homes())
        watch = Watch(config.state_dir, metrics, _thresholds(config))
        pool = Pool(
            ground.engine,
            ground.images,
            _places(config, ground, sources, proxies),
            sizes=config.pool,
            gate=partial(_gate, membership.check, watch.gate),
            observe=metrics.guest_call_seconds.observe,
            outfit=ground.outfit,
        )
        means = Means(ledger, pool, ground.images, sources, metrics, _network(config, clients), depot)
        async with (
            pool.running(),
            watch.running(pool.keeper.strain),
            Sandboxes(means, Defaults(config.default_image, config.rules)).running() as host,
            upkeep(ledger, config, sources.now_ms),
        ):
            await reconcile.take_over(todo, means, host, ground.slot_of, recovery)
            facts = _facts(config, ground, sources, cluster.shared)
            keys = None if config.pki is None else config.pki.tickets
            tickets = Tickets(config.name, keys, now_ms=sources.now_ms)
            refusals = Refusals(ledger, metrics, now_ms=sources.now_ms)
            async with (await _tasks(config, means, host, cluster.shared)).running() as tasks:
                carrying.begin(_heir(config, means, host, tasks))
                found = Services(
                    host,
                    pool,
                    ledger,
                    ground.images,
                    metrics,
                    ground.cgroups,
                    watch,
                    recovery,
                    facts,
                    tickets,
                    refusals,
                    tasks,
                    replica=opened.replica,
                    membership=membership,
                )
                measure(found)
                await _serve(config, found, stop, ready)


async def _serve(config: Config, found: Services, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    async with serving(found, config), _beating(config, found), _among_others(found):
        log.info("serving", extra={"address": f"{config.host}:{config.port}", "engine": config.engine})
        ready()
        await stop.wait()
        log.info("stopping")


async def _tasks(config: Config, means: Means, host: Sandboxes, shared: Shared | None) -> Tasks:
    tools = Tools.make(
        means,
        host,
        config.tasks,
        read_prices(config.tasks.prices),
        state_dir=config.state_dir,
        image=config.default_image,
        escrow=await _escrow(config, shared),
        # A folder that hosts share has what tasks leave behind anyway.
        store=None if shared is None or config.tasks.is_shared else shared.store,
    )
    network = means.network
    ways = Ways(
        HostResolver().resolve,
        connect,
        is_own,
        private_hosts=network.private_hosts,
        private_nets=network.private_nets,
    )
    return Tasks(tools, partial(post, ways), random.random)


async def _escrow(config: Config, shared: Shared | None) -> Escrow | None:
    """Where other hosts of the cluster find the secrets of our tasks, if we are lost."""
    if shared is None:
        return None
    if config.pki is None or not config.pki.seal.exists():
        log.warning("there is no seal.key in POOLD_PKI: tasks of this host end with it, and it takes none over")
        return None
    return Escrow(shared.store, Seal(await asyncio.to_thread(config.pki.seal.read_bytes)), shared.cluster)


def _heir(config: Config, means: Means, host: Sandboxes, tasks: Tasks) -> Heir:
    async def go_on(kind: str, one: str) -> None:
        if kind == "task":
            await tasks.adopt(one)
        else:
            host.wait_for(await host.get(one))

    return Heir(means.ledger, config.state_dir / "takeovers", partial(newest, config), go_on, means.sources.now_ms)


async def _restore(config: Config, lost: Lost) -> None:
    """This host's own ledger, from the store: its disk has another, or none."""
    if await newest(config, lost, config.ledger_path) is None:
        log.warning("there is no replica of this host's ledger: it begins with an empty one")


async def stop_all(config: Config, sources: Sources) -> None:
    """End every machine that a former daemon left running. What is paused stays on disk. Needs no image."""
    metrics = Metrics()
    async with (
        alone(config) as guard,
        open_ledger(config, metrics, sources.now_ms, epoch=None) as opened,
        _ground(config, opened.ledger, sources, ends=True) as (ground, todo, _),
        _proxies(config, ground, Connections(opened.ledger, metrics, sources.now_ms), sources),
    ):
        for action in todo.adopt:
            log.info("stopping", extra={"sandbox": action.sandbox.id})
            stop = partial(
                sandboxes.move,
                sandbox_id=action.sandbox.id,
                event=Event.STOP,
                now_ms=sources.now_ms(),
                reason="all sandboxes of this host were stopped",
            )
            await opened.ledger.write(stop)
            await ground.engine.destroy(action.machine_id)
        await asyncio.to_thread(wardens.dismiss, guard)


def _gate(*gates: Callable[[], None]) -> None:
    """Raises what is against starting something."""
    for gate in gates:
        gate()


@contextlib.asynccontextmanager
async def _ground(
    config: Config, ledger: Ledger, sources: Sources, *, ends: bool = False, outfit: Outfit | None = None
) -> AsyncIterator[tuple[Ground, reconcile.Plan, reconcile.Recovery]]:
    """What machines stand on, cleared of everything that should not be there.

    Slots of running machines are kept, unless whoever asks `ends` them all. Then none is started, either.
    """
    ground = await (_local(config) if config.engine == "local" else _qemu(config, outfit or Outfit(), starts=not ends))
    try:
        rows = await ledger.read(sandboxes.alive)
        found = await asyncio.to_thread(ground.engine.found)
        todo = reconcile.plan(rows, found, base_uid=ground.base_uid)
        recovery = await reconcile.clear(todo, ground.engine, ledger, now_ms=sources.now_ms())
        if ground.cgroups is not None:
            running = {action.machine_id for action in todo.adopt}
            recovery.removed += await finish(asyncio.to_thread(_sweep_groups, ground.cgroups, running))
        kept = set() if ends else todo.slots
        async with _slots(config, ground, kept):
            yield ground, todo, recovery
    finally:
        ground.engine.close()
        if ground.cgroups is not None:
            ground.cgroups.close()


def _sweep_groups(cgroups: Cgroups, running: Collection[str]) -> list[str]:
    """Remove the groups of machines that run no more: a daemon may be killed after the one end and before the other."""
    removed = []
    for machine_id in sorted(cgroups.found() - set(running)):
        try:
            cgroups.end(machine_id)
        except HostFault as error:  # of a process that cannot be ended: it must not cost the others
            log.error("a cgroup cannot be removed", extra={"machine": machine_id, "why": str(error)})
        else:
            removed.append(f"cgroup {machine_id}")
    return removed


@contextlib.asynccontextmanager
async def _slots(config: Config, ground: Ground, keep: Collection[int]) -> AsyncIterator[None]:
    if config.engine == "local":
        yield
        return
    async with open_slots(config.run_dir, count=config.slots, base_uid=config.base_uid, keep=keep) as slots:
        ground.net = ground.slots = slots
        ground.slot_of = slots.kept
        try:
            yield
        finally:
            slots.spare_taken()  # whatever is still in use, a machine runs in it


@contextlib.asynccontextmanager
async def _proxies(
    config: Config, ground: Ground, told: Connections, sources: Sources
) -> AsyncIterator[Proxies | None]:
    """The proxies of machines, cleared of those whose machine is not taken over. None where nothing is isolated."""
    if not ground.engine.isolates:
        yield None
        return
    folder = config.run_dir / "egress"
    proxies = Proxies(
        folder,
        lambda slot: ground.network().proxy_sockets(slot),
        told=told,
        now_ms=sources.now_ms,
        environ=config.egress.clients,
        log=config.state_dir / "egress.log",
    )
    async with proxies.running():
        # What was to be kept may not be there any more: then its proxy guards nothing.
        await proxies.sweep({slot.number for slot in ground.network().taken})
        yield proxies


def _clients(config: Config) -> Registries:
    """Where the host's own clients get packages from. Blocks."""
    found = read_registries(config.egress.clients, more=config.egress.registries)
    log.info("registries", extra={"hosts": [str(rule) for rule in found.hosts], "notes": found.notes})
    return found


def _outfit(config: Config, clients: Registries) -> Outfit:
    ca = config.egress.guest_ca
    try:
        return Outfit(clients.files, None if ca is None else ca.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"POOLD_GUEST_CA={ca} cannot be read: {error}") from None


def _network(config: Config, clients: Registries) -> HostNetwork:
    said = config.egress
    return HostNetwork(
        said.most, said.limits, clients.hosts, said.private_hosts, said.private_nets, _client_env(config, clients)
    )


def _client_env(config: Config, clients: Registries) -> dict[str, str]:
    """Settings for clients that read no file; Node has a list of authorities of its own."""
    return dict(clients.env) | ({} if config.egress.guest_ca is None else {"NODE_EXTRA_CA_CERTS": GUEST_CA})


async def _qemu(config: Config, outfit: Outfit, *, starts: bool) -> Ground:
    """Only an engine that `starts` machines needs images, and to know how their instructions are run."""
    images = Images(config.images_dir)
    accel = await find_accel(images.find(_checked(config, images)[0])) if starts else UNTRIED
    log.info("engine", extra={"accel": accel.name})
    cgroups = open_cgroups(name=config.cgroup, io_device=config.state_dir)
    engine = QemuEngine(
        config.state_dir / "qemu",
        accel=accel,
        socket_in=lambda slot: ground.network().socket_in(slot),
        open_tap=lambda slot: ground.network().open_tap(slot),
        limit=cgroups,
        outfit=outfit.key,
    )
    none = PlainSlots(0, uid=0)
    ground = Ground(engine, images, accel.name, config.base_uid, cgroups, none, lambda _: None, outfit)
    return ground


def _checked(config: Config, images: Images) -> list[str]:
    """The names of all images. There is one at least, and every one that the pool is to have."""
    names = images.names()
    for name in config.pool:
        if name not in names:
            raise ConfigError(
                f"POOLD_POOL has {name!r}, but {config.images_dir} has only: {', '.join(names) or 'nothing'}"
            )
    if not names:
        raise ConfigError(f"POOLD_IMAGES={config.images_dir} has no image: run 'make images'")
    return names


async def _local(config: Config) -> Ground:
    from poold.engines.local import LocalEngine

    engine = LocalEngine(config.state_dir / "local", python=sys.executable, guest_path=config.guest_path)
    slots = PlainSlots(config.slots, uid=os.getuid())
    return Ground(engine, HostImages(), "none", os.getuid(), None, slots, lambda _: slots.take_nowait(), Outfit())


def _places(config: Config, ground: Ground, sources: Sources, proxies: Proxies | None) -> Places:
    return Places(
        ground.slots,
        proxies=proxies,
        memory_budget_mb=config.memory_budget_mb,
        new_machine_id=lambda: new_id("vm", sources.entropy),
    )


def _thresholds(config: Config) -> Thresholds:
    """So much must be free; after it was not, half as much again before it is well."""
    return Thresholds(
        memory_available_mb=Threshold(config.min_memory_mb, config.min_memory_mb * 1.5),
        disk_free_mb=Threshold(config.min_disk_mb, config.min_disk_mb * 1.5),
    )


def _beating(config: Config, found: Services) -> contextlib.AbstractAsyncContextManager[None]:
    """This host's record is kept up to date in the registry, if there is one."""
    if config.registry is None:
        return contextlib.nullcontext()
    return Registry(config.registry, partial(record, found), partial(is_ready, found)).beating()


@contextlib.asynccontextmanager
async def _among_others(found: Services) -> AsyncIterator[None]:
    """The lease tells how this host is doing, and those of others are watched."""
    keeper, members = found.membership.keeper, found.membership.members
    if keeper is None or members is None:
        yield
        return
    keeper.record_from(partial(record, found))
    async with members.watching():
        yield


def _facts(config: Config, ground: Ground, sources: Sources, shared: Shared | None) -> Facts:
    return Facts(
        name=config.name,
        address=config.advertise,
        version=__version__,
        engine=config.engine,
        accel=ground.accel,
        started_ms=sources.now_ms(),
        slots=config.slots,
        limits=config.limits,
        default_image=config.default_image,
        ledger_path=config.ledger_path,
        durability=config.durability,
        images_dir=config.images_dir,
        store=None if shared is None else shared.place,
        cluster=None if shared is None else shared.cluster,
    )
