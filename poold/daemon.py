"""Joins the rooms of the daemon, opens them in order, and closes them in the reverse order, whatever happens."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable
from functools import partial

from contract.__about__ import __version__
from contract.ids import new_id
from contract.states import Event
from poold import reconcile
from poold.api.books import Books
from poold.api.observe import is_ready, measure, record
from poold.api.services import Facts, Services
from poold.api.tickets import Refusals, Tickets
from poold.cluster import Cluster, alone, joined
from poold.config import Config
from poold.drain import Departure, Drained, Returning
from poold.drain import Means as DrainMeans
from poold.drain.imds import ImdsPlace
from poold.drain.outcomes import Outcomes
from poold.drain.spot import Spot
from poold.egress.proxies import Proxies
from poold.egress.proxy.dial import HostResolver, connect, is_own
from poold.egress.registries import Registries, read_registries
from poold.errors import ConfigError
from poold.ground import Ground, open_ground, open_proxies
from poold.lease import wardens
from poold.lease.members import Lost
from poold.ledger import drains, sandboxes
from poold.lifetimes import beside
from poold.metrics import Metrics
from poold.opened import Opened, open_ledger
from poold.pool import Outfit, Places, Pool
from poold.pressure import Threshold, Thresholds
from poold.registry import Registry, open_place
from poold.replica import accepted
from poold.replica.errors import ReplicaDamaged, ReplicaError
from poold.sandboxes import Connections, Defaults, HostNetwork, Means, Sandboxes, Sources, open_depot
from poold.seal import Seal
from poold.serving import serving
from poold.store import Store
from poold.store.folder import open_folder
from poold.store.opening import Shared
from poold.strain import Watch
from poold.takeover import Carrying, Heir, newest
from poold.tasks import Tasks, Tools
from poold.tasks.escrow import Escrow
from poold.tasks.posting import Ways, post
from poold.tasks.prices import read_prices
from poold.upkeep import upkeep
from poold.workspaces import open_shelf, templates

log = logging.getLogger("poold")

RESTORE_S, LONGEST_RESTORE_S = 5.0, 300.0  # between two tries to restore this host's own ledger
GUEST_CA = "/usr/local/share/ca-certificates/warren.crt"  # where a guest keeps whom it is told to trust


async def run(
    config: Config,
    sources: Sources,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None],
    start_anew: Callable[[], None] | None = None,
) -> None:
    """Serve until `stop` is set. `ready` is called once requests are answered. Running sandboxes outlive this.

    A host that loses its lease starts anew at once, if it is told how; else this ends with `Fenced`, in a group.
    """
    metrics = Metrics()
    clients = await asyncio.to_thread(_clients, config)
    carrying = Carrying()
    async with (
        joined(
            config,
            metrics,
            stop,
            restore=partial(_restore, config),
            take_over=carrying.take_over,
            start_anew=start_anew,
        ) as cluster,
        open_ledger(config, metrics, sources.now_ms, epoch=cluster.epoch, check=cluster.membership.check) as opened,
        open_ground(config, opened.ledger, sources, outfit=_outfit(config, clients)) as (ground, todo, recovery),
        open_proxies(config, ground, Connections(opened.ledger, metrics, sources.now_ms), sources) as proxies,
        open_depot(
            config.state_dir, cluster.shared, ground.engine, ground.images, ledger=opened.ledger, sources=sources
        ) as depot,
        open_shelf(config.workspaces, config.state_dir, cluster.shared, sources.now_ms) as shelf,
    ):
        ledger, membership = opened.ledger, cluster.membership
        if membership.keeper is not None and ground.cgroups is not None:
            await membership.keeper.also_kill(ground.cgroups.homes())
        watch = Watch(config.state_dir, metrics, _thresholds(config))
        gate = partial(_gate, membership.check, watch.gate)
        pool = _pool(config, ground, _places(config, ground, sources, proxies), metrics, gate)
        means = Means(ledger, pool, ground.images, sources, metrics, _network(config, clients), depot, shelf)
        async with (
            pool.running(),
            watch.running(pool.keeper.strain),
            Sandboxes(means, Defaults(config.default_image, config.rules)).running() as host,
            upkeep(ledger, config, sources.now_ms),
        ):
            drained, under_way = Drained(config.state_dir), await ledger.read(drains.under_way)
            host.is_draining = bool(drained) or under_way is not None
            await reconcile.take_over(todo, means, host, ground.slot_of, recovery)
            await templates.ship(shelf, __version__)
            async with (
                _returning(config, means, host, cluster.shared).running() as returning,
                _open_tasks(config, means, host, cluster.shared, halted=under_way is not None) as tasks,
            ):
                carrying.begin(_heir(config, means, host, tasks, returning))
                drain = _drain_means(config, means, host, tasks, cluster=cluster, opened=opened, drained=drained)
                departure = Departure(drain, returning, under_way)
                found = Services(
                    host,
                    pool,
                    ledger,
                    ground.images,
                    metrics,
                    ground.cgroups,
                    watch,
                    recovery,
                    _facts(config, ground, sources, cluster.shared),
                    _tickets(config, sources),
                    Refusals(ledger, metrics, now_ms=sources.now_ms),
                    tasks,
                    departure=departure,
                    replica=opened.replica,
                    membership=membership,
                    books=Books(membership),
                )
                measure(found)
                metrics.takeover_missing.read_from(lambda: {(): float(sum(carrying.missing.values()))})
                await _serve(config, found, carrying, stop, ready)


async def _serve(
    config: Config, found: Services, carrying: Carrying, stop: asyncio.Event, ready: Callable[[], None]
) -> None:
    async with serving(found, config), _beating(config, found), _among_others(found, carrying), _leaving(config, found):
        log.info("serving", extra={"address": f"{config.host}:{config.port}", "engine": config.engine})
        ready()
        await stop.wait()
        log.info("stopping")


def _pool(config: Config, ground: Ground, places: Places, metrics: Metrics, gate: Callable[[], None]) -> Pool:
    observe = metrics.guest_call_seconds.observe
    return Pool(
        ground.engine, ground.images, places, sizes=config.pool, gate=gate, observe=observe, outfit=ground.outfit
    )


def _tickets(config: Config, sources: Sources) -> Tickets:
    return Tickets(config.name, None if config.pki is None else config.pki.tickets, now_ms=sources.now_ms)


@contextlib.asynccontextmanager
async def _open_tasks(
    config: Config, means: Means, host: Sandboxes, shared: Shared | None, *, halted: bool
) -> AsyncIterator[Tasks]:
    """Checkpoints are in what hosts share; of a host that is alone, on its own disk."""
    async with contextlib.AsyncExitStack() as stack:
        if shared is None:
            store: Store = await stack.enter_async_context(open_folder(config.tasks.store))
        else:
            store = shared.store
        tasks = await _tasks(config, means, host, store, shared)
        yield await stack.enter_async_context(tasks.running(halted=halted))


async def _tasks(config: Config, means: Means, host: Sandboxes, store: Store, shared: Shared | None) -> Tasks:
    tools = Tools.make(
        means,
        host,
        config.tasks,
        read_prices(config.tasks.prices),
        state_dir=config.state_dir,
        image=config.default_image,
        store=store,
        escrow=await _escrow(config, shared),
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


def _heir(config: Config, means: Means, host: Sandboxes, tasks: Tasks, returning: Returning) -> Heir:
    async def go_on(kind: str, one: str) -> None:
        if kind == "task":
            await tasks.adopt(one)
        else:
            host.wait_for(await host.get(one))
            await returning.add(one)

    folder, forget = config.state_dir / "takeovers", partial(accepted.forget, config.state_dir)
    return Heir(means.ledger, folder, partial(newest, config), go_on, means.sources.now_ms, forget)


def _returning(config: Config, means: Means, host: Sandboxes, shared: Shared | None) -> Returning:
    return Returning(config.name, means.ledger, host, None if shared is None else Outcomes(shared.store))


def _drain_means(
    config: Config,
    means: Means,
    host: Sandboxes,
    tasks: Tasks,
    *,
    cluster: Cluster,
    opened: Opened,
    drained: Drained,
) -> DrainMeans:
    return DrainMeans(
        config.name,
        means.ledger,
        host,
        tasks,
        means.pool,
        means.metrics,
        means.sources,
        drained,
        cluster.membership,
        store=None if cluster.shared is None else cluster.shared.store,
        cover=None if opened.replica is None else opened.replica.cover,
    )


async def _restore(config: Config, lost: Lost) -> None:
    """This host's own ledger, from the store: its disk has another, or none. One that is damaged there is tried again,
    for as long as it takes: to begin with an older one would lose what was acknowledged since.
    """
    pause_s = RESTORE_S
    while True:
        try:
            if await newest(config, lost, config.ledger_path) is None:
                log.warning("there is no replica of this host's ledger: it begins with an empty one")
            await asyncio.to_thread(accepted.forget, config.state_dir, lost.host)
            return
        except (ReplicaDamaged, ReplicaError) as error:
            told = {"why": str(error), "again_s": pause_s, "line": [lost.root, lost.last]}
            log.error("this host's ledger cannot be restored; see pooldctl ledger accept", extra=told)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_RESTORE_S)


async def stop_all(config: Config, sources: Sources) -> None:
    """End every machine that a former daemon left running. What is paused stays on disk. Needs no image."""
    metrics = Metrics()
    async with (
        alone(config) as guard,
        open_ledger(config, metrics, sources.now_ms, epoch=None) as opened,
        open_ground(config, opened.ledger, sources, ends=True) as (ground, todo, _),
        open_proxies(config, ground, Connections(opened.ledger, metrics, sources.now_ms), sources),
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


@contextlib.asynccontextmanager
async def _beating(config: Config, found: Services) -> AsyncIterator[None]:
    """This host's record is kept up to date in the registry, if there is one."""
    if config.registry is None:
        yield
        return
    async with (
        open_place(config.registry) as place,
        Registry(place, partial(record, found), partial(is_ready, found)).beating(),
    ):
        yield


@contextlib.asynccontextmanager
async def _among_others(found: Services, carrying: Carrying) -> AsyncIterator[None]:
    """The lease tells how this host is doing, and those of others are watched."""
    keeper, members = found.membership.keeper, found.membership.members
    if keeper is None or members is None:
        yield
        return
    keeper.record_from(partial(record, found))
    async with members.watching(), beside(carrying.finish_others()):
        yield


@contextlib.asynccontextmanager
async def _leaving(config: Config, found: Services) -> AsyncIterator[None]:
    """This host may be drained, by its operator or since its instance is to go."""
    place, departure = ImdsPlace.of(config.imds), found.departure
    async with contextlib.AsyncExitStack() as stack:
        if departure is not None:
            await stack.enter_async_context(departure.running())
        if departure is not None and place is not None:
            now_ms = found.sandboxes.now_ms
            spot = Spot(place, departure, found.sandboxes, found.ledger, found.metrics, now_ms=now_ms)
            await stack.enter_async_context(beside(spot.watch()))
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
