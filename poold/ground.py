"""What machines stand on: an engine, slots, control groups, proxies. Cleared of what a former daemon left there."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass

from poold import reconcile
from poold.cgroups import Cgroups, open_cgroups
from poold.config import Config
from poold.egress.proxies import Proxies
from poold.engines import Engine
from poold.engines.qemu import QemuEngine
from poold.engines.qemu.accel import UNTRIED, find_accel
from poold.errors import ConfigError, HostFault, NetError
from poold.images import HostImages, Images
from poold.ledger import Ledger, sandboxes
from poold.lifetimes import finish
from poold.net import Slots as NetSlots
from poold.net import open_slots
from poold.pool import Outfit, Slots
from poold.sandboxes import Connections, Sources
from poold.slots import PlainSlots, Slot

log = logging.getLogger("poold")


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


@contextlib.asynccontextmanager
async def open_ground(
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
async def open_proxies(
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
