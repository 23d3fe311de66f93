"""Joins the rooms of the daemon, opens them in order, and closes them in the reverse order, whatever happens."""

import asyncio
import contextlib
import fcntl
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from granian.constants import Interfaces
from granian.server.embed import Server
from starlette.applications import Starlette

from contract.ids import new_id
from poold.api.app import make_app
from poold.config import Config
from poold.engines import Engine
from poold.engines.qemu import QemuEngine
from poold.engines.qemu.accel import find_accel
from poold.errors import ConfigError
from poold.images import HostImages, Images
from poold.ledger import Ledger
from poold.lifetimes import finish
from poold.net import open_slots
from poold.pool import Pool, Slots
from poold.sandboxes import Sandboxes, Sources
from poold.slots import PlainSlots

log = logging.getLogger("poold")

# Granian counts open streams as requests under way, and lets the next request hang when there are too many.
STREAMS_AT_ONCE = 10_000
FINISH_S = 2.0  # for requests under way when the daemon is stopped


@dataclass(frozen=True)
class Ground:
    """What machines stand on: their engine, their images and their slots."""

    engine: Engine
    images: Images
    slots: Slots


async def run(config: Config, sources: Sources, *, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Serve until `stop` is set. `ready` is called once requests are answered. After this nothing of ours runs."""
    config.state_dir.mkdir(parents=True, exist_ok=True)
    config.run_dir.mkdir(parents=True, exist_ok=True)
    with _only_one(config.state_dir):
        async with (
            Ledger.open(config.state_dir / "ledger.db") as ledger,
            _ground(config) as ground,
            _pool(config, ground, sources).running() as pool,
            Sandboxes(
                ledger,
                pool,
                ground.images,
                sources,
                default_image=config.default_image,
                default_timeout_s=config.default_timeout_s,
            ).running() as sandboxes,
            _serving(make_app(sandboxes, pool, config.limits), config),
        ):
            log.info("serving", extra={"address": f"{config.host}:{config.port}", "engine": config.engine})
            ready()
            await stop.wait()
            log.info("stopping")


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
async def _ground(config: Config) -> AsyncIterator[Ground]:
    async with _local(config) if config.engine == "local" else _qemu(config) as ground:
        try:
            for machine_id in ground.engine.leftovers():
                log.warning("removing a machine of a former daemon", extra={"machine": machine_id})
                await ground.engine.destroy(machine_id)
            yield ground
        finally:
            ground.engine.close()


@contextlib.asynccontextmanager
async def _qemu(config: Config) -> AsyncIterator[Ground]:
    images = Images(config.images_dir)
    names = images.names()
    for name in config.pool:
        if name not in names:
            raise ConfigError(
                f"POOLD_POOL has {name!r}, but {config.images_dir} has only: {', '.join(names) or 'nothing'}"
            )
    if not names:
        raise ConfigError(f"POOLD_IMAGES={config.images_dir} has no image: run 'make images'")
    accel = await find_accel(images.find(names[0]))
    log.info("engine", extra={"accel": accel.name})
    async with open_slots(config.run_dir, count=config.slots, base_uid=config.base_uid) as slots:
        engine = QemuEngine(config.state_dir / "qemu", accel=accel, socket_in=slots.socket_in, open_tap=slots.open_tap)
        yield Ground(engine, images, slots)


@contextlib.asynccontextmanager
async def _local(config: Config) -> AsyncIterator[Ground]:
    from poold.engines.local import LocalEngine

    engine = LocalEngine(config.state_dir / "local", python=sys.executable, guest_path=config.guest_path)
    yield Ground(engine, HostImages(), PlainSlots(config.slots, uid=os.getuid()))


def _pool(config: Config, ground: Ground, sources: Sources) -> Pool:
    return Pool(
        ground.engine,
        ground.images,
        ground.slots,
        sizes=config.pool,
        memory_budget_mb=config.memory_budget_mb,
        new_machine_id=lambda: new_id("vm", sources.entropy),
    )


@contextlib.asynccontextmanager
async def _serving(app: Starlette, config: Config) -> AsyncIterator[None]:
    """Answer requests during the block. A server that ends by itself ends the daemon.

    At the end of the block, requests under way have a moment to finish. Then the sandboxes are ended that streams tell
    of, and they have a moment to say so.
    """
    server = Server(
        app,
        address=config.host,
        port=config.port,
        interface=Interfaces.ASGINL,
        backpressure=STREAMS_AT_ONCE,
        log_enabled=False,
    )
    serving = asyncio.create_task(server.serve())
    try:
        await _listening(config, serving)
        yield
    finally:
        server.stop()  # type: ignore[no-untyped-call]
        await asyncio.wait([serving], timeout=FINISH_S)
        await finish(app.state.sandboxes.stop())
        await asyncio.wait([serving], timeout=FINISH_S)
    if serving.done():
        serving.result()
    else:
        log.warning("some clients did not read their replies to the end")


async def _listening(config: Config, serving: "asyncio.Task[None]") -> None:
    """Wait until the port answers, or raise what the server raised."""
    while True:
        if serving.done():
            serving.result()
        try:
            _, writer = await asyncio.open_connection(config.host, config.port)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return
