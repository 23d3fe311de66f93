"""Joins the rooms of the daemon, opens them in order, and closes them in the reverse order, whatever happens."""

import asyncio
import contextlib
import fcntl
import logging
import os
import random
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from contract.__about__ import __version__
from contract.errors import WarrenError
from contract.ids import new_id
from contract.states import Event
from poold import reconcile
from poold.api.observe import is_ready, measure, record
from poold.api.services import Facts, Services
from poold.api.tickets import Refusals, Tickets
from poold.cgroups import Cgroups, open_cgroups
from poold.config import Config
from poold.egress.proxies import Proxies
from poold.egress.proxy.dial import HostResolver, connect, is_own
from poold.egress.registries import Registries, read_registries
from poold.engines import Engine
from poold.engines.qemu import QemuEngine
from poold.engines.qemu.accel import UNTRIED, find_accel
from poold.errors import ConfigError, HostFault, NetError
from poold.images import HostImages, Images
from poold.ledger import Ledger, retention, sandboxes
from poold.lifetimes import beside, finish
from poold.metrics import Metrics
from poold.net import Slots as NetSlots
from poold.net import open_slots
from poold.pool import Outfit, Places, Pool, Slots
from poold.pressure import Threshold, Thresholds
from poold.registry import Registry
from poold.sandboxes import Connections, Defaults, HostNetwork, Means, Sandboxes, Sources
from poold.serving import serving
from poold.slots import PlainSlots, Slot
from poold.store import Store
from poold.store.folder import open_folder
from poold.strain import Watch
from poold.tasks import Tasks, Tools
from poold.tasks.posting import Ways, post
from poold.tasks.prices import read_prices

log = logging.getLogger("poold")

GUEST_CA = "/usr/local/share/ca-certificates/warren.crt"  # where a guest keeps whom it is told to trust
UPKEEP_S = 3600.0
BETWEEN_SWEEPS_S = 0.1  # others want to write, too


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
    async with (
        _opened(config, metrics) as ledger,
        _ground(config, ledger, sources, outfit=_outfit(config, clients)) as (ground, todo, recovery),
        _proxies(config, ground, Connections(ledger, metrics, sources.now_ms), sources) as proxies,
    ):
        watch = Watch(config.state_dir, metrics, _thresholds(config))
        pool = Pool(
            ground.engine,
            ground.images,
            _places(config, ground, sources, proxies),
            sizes=config.pool,
            gate=watch.gate,
            observe=metrics.guest_call_seconds.observe,
            outfit=ground.outfit,
        )
        means = Means(ledger, pool, ground.images, sources, metrics, _network(config, clients))
        async with (
            pool.running(),
            watch.running(pool.keeper.strain),
            Sandboxes(means, Defaults(config.default_image, config.rules)).running() as host,
            _upkeep(ledger, config, sources),
        ):
            await reconcile.take_over(todo, means, host, ground.slot_of, recovery)
            facts = _facts(config, ground, sources)
            keys = None if config.pki is None else config.pki.tickets
            tickets = Tickets(config.name, keys, now_ms=sources.now_ms)
            refusals = Refusals(ledger, metrics, now_ms=sources.now_ms)
            async with open_folder(config.tasks.store) as store, _tasks(config, means, host, store).running() as tasks:
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
                )
                measure(found)
                await _serve(config, found, stop, ready)


async def _serve(config: Config, found: Services, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    async with serving(found, config), _beating(config, found):
        log.info("serving", extra={"address": f"{config.host}:{config.port}", "engine": config.engine})
        ready()
        await stop.wait()
        log.info("stopping")


def _tasks(config: Config, means: Means, host: Sandboxes, store: Store) -> Tasks:
    prices = read_prices(config.tasks.prices)
    image = config.default_image
    tools = Tools.make(means, host, config.tasks, prices, state_dir=config.state_dir, image=image, store=store)
    network = means.network
    ways = Ways(
        HostResolver().resolve,
        connect,
        is_own,
        private_hosts=network.private_hosts,
        private_nets=network.private_nets,
    )
    return Tasks(tools, partial(post, ways), random.random)


async def stop_all(config: Config, sources: Sources) -> None:
    """End every machine that a former daemon left running. What is paused stays on disk. Needs no image."""
    metrics = Metrics()
    async with (
        _opened(config, metrics) as ledger,
        _ground(config, ledger, sources, ends=True) as (ground, todo, _),
        _proxies(config, ground, Connections(ledger, metrics, sources.now_ms), sources),
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
            await ledger.write(stop)
            await ground.engine.destroy(action.machine_id)


@contextlib.asynccontextmanager
async def _opened(config: Config, metrics: Metrics) -> AsyncIterator[Ledger]:
    """The ledger, with this daemon as the only one on it."""
    for folder in (config.state_dir, config.run_dir):
        folder.mkdir(parents=True, exist_ok=True)
    with _only_one(config.state_dir):

        def committed(seconds: float, group: int) -> None:
            metrics.ledger_commit_seconds.observe(seconds)
            metrics.ledger_group_size.observe(group)

        async with Ledger.open(config.ledger_path, observe=committed) as ledger:
            yield ledger


@contextlib.contextmanager
def _only_one(state_dir: Path) -> Iterator[None]:
    """Two daemons on one ledger would each believe that they own its machines."""
    with (state_dir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another poold runs on POOLD_STATE_DIR={state_dir}") from None
        yield


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


def _facts(config: Config, ground: Ground, sources: Sources) -> Facts:
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
        images_dir=config.images_dir,
    )


@contextlib.asynccontextmanager
async def _upkeep(ledger: Ledger, config: Config, sources: Sources) -> AsyncIterator[None]:
    """Remove from the ledger what is too old, now and then."""
    keep = retention.Keep(ended_days=config.keep_sandboxes_days, audit_days=config.keep_audit_days)

    async def forever() -> None:
        while True:
            sweep = partial(retention.sweep, keep=keep, now_ms=sources.now_ms())
            wait_s = BETWEEN_SWEEPS_S
            try:
                if (await ledger.write(sweep, durable=False)).done:
                    wait_s = UPKEEP_S
            except WarrenError as error:
                log.error("the ledger could not be swept", extra={"why": str(error)})
                wait_s = UPKEEP_S
            await asyncio.sleep(wait_s)

    async with beside(forever()):
        yield
