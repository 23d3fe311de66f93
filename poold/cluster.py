"""A host among others: its store and its lease, before anything else is opened. A host that is alone has neither."""

import asyncio
import contextlib
import fcntl
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson

from contract.__about__ import __version__
from contract.hosts import Host
from poold.config import Config
from poold.engines import local
from poold.engines.qemu import argv
from poold.errors import ConfigError
from poold.lease.guard import Guard, Targets
from poold.lease.keeper import Keeper
from poold.lease.members import Lost, Members, TakeOver
from poold.lease.membership import Membership
from poold.lease.notes import Notes
from poold.lease.starting import Ground, acquire, restored, stand_down
from poold.lease.terms import Begin
from poold.ledger import care
from poold.metrics import Metrics
from poold.places import S3Config
from poold.replica.litestream import settings_of
from poold.store.errors import Unreachable
from poold.store.opening import Shared, open_shared

log = logging.getLogger("poold.cluster")

RETRY_S = 1.0  # with a store that does not answer

T = TypeVar("T")
Restore = Callable[[Lost], Awaitable[None]]


@dataclass(frozen=True)
class Cluster:
    """What this host shares with others, and its place among them."""

    shared: Shared | None = None
    membership: Membership = field(default_factory=Membership)

    @property
    def epoch(self) -> int | None:
        """Part of the path of the ledger's replica: no other holder of this host's lease has had it."""
        return None if self.membership.keeper is None else self.membership.keeper.epoch


class StoppedBefore(Exception):
    """Somebody stopped this poold while it waited for the store, or for its lease."""


@contextlib.asynccontextmanager
async def joined(
    config: Config,
    metrics: Metrics,
    stop: asyncio.Event,
    *,
    restore: Restore | None = None,
    take_over: TakeOver | None = None,
    start_anew: Callable[[], None] | None = None,
) -> AsyncIterator[Cluster]:
    """This daemon is the only one on its state folder; with a store, its host holds its lease during the block.

    If the lease is lost we `start_anew`, or the block ends with `Fenced`, in a group. Before the store is asked for
    anything, machines are killed that a lease of this host has no time for any more.
    """
    async with alone(config) as guard:
        notes = Notes(config.state_dir)
        if config.store is None:
            await asyncio.to_thread(_must_be_alone, notes)
            yield Cluster()
            return
        await asyncio.to_thread(_must_be_known, config, notes)
        async with contextlib.AsyncExitStack() as stack:
            await asyncio.to_thread(_tell_what_was_killed, guard, metrics)
            await stand_down(guard, notes, targets_of(config))
            shared = await _or_stop(_opened(config.store, config.state_dir, metrics, stack), stop)
            ground = _ground(config, shared, guard, notes)
            begin, held = await _or_stop(acquire(ground), stop)
            keeper = Keeper(ground, held, start_anew=start_anew)
            await stack.enter_async_context(keeper.holding())
            if begin is Begin.RESTORE:
                lost = Lost(config.name, held.lease.root, held.lease.epoch - 1)
                await _or_stop(_restored(config, restore, lost), stop)
                await restored(ground, held)
            members = Members(shared.store, keeper, take_over=take_over, jitter=random.random)
            yield Cluster(shared, Membership(keeper, members))


@contextlib.asynccontextmanager
async def alone(config: Config) -> AsyncIterator[Guard]:
    """This process is the only one on the folders of the host. Two would each believe that they own its machines."""
    for folder in (config.state_dir, config.run_dir):
        folder.mkdir(parents=True, exist_ok=True)
    with (config.state_dir / "lock").open("w") as lock, Guard(config.run_dir / "lease").opened() as guard:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another poold runs on POOLD_STATE_DIR={config.state_dir}") from None
        yield guard


def targets_of(config: Config) -> Targets:
    """All that may run of this host: machines of either engine, their proxies with what starts them, and Litestream:
    what a host without a lease writes to its replica counts for nothing.
    """
    machines = config.state_dir / "qemu" / "machines", config.state_dir / "local" / "machines"
    marks = ((argv.MARK, f"{argv.mark(machines[0])}/"), (local.MARK, f"{machines[1]}/"))
    zygote = ("poold.egress.zygote", str(config.run_dir / "egress"))
    return Targets(marks, arguments=(zygote, ("replicate", str(settings_of(config.state_dir)))))


def _ground(config: Config, shared: Shared, guard: Guard, notes: Notes) -> Ground:
    record = Host(config.name, config.advertise, ready=False, version=__version__)
    return Ground(
        store=shared.store,
        guard=guard,
        notes=notes,
        targets=targets_of(config),
        record=record,
        hold_ms=config.lease_s * 1000,
        ledger=config.ledger_path,
    )


async def _opened(
    where: Path | S3Config, state_dir: Path, metrics: Metrics, stack: contextlib.AsyncExitStack
) -> Shared:
    """The store, once it answers: a host that was fenced because it did not comes back by itself."""

    def observe(seconds: float, is_answered: bool) -> None:
        metrics.store_request_seconds.observe(seconds)
        metrics.store_requests_total.add(outcome="answered" if is_answered else "failed")

    is_told = False
    while True:
        try:
            shared = await stack.enter_async_context(open_shared(where, state_dir, observe=observe))
        except Unreachable as error:
            if not is_told:
                log.warning("waiting for the store", extra={"store": str(where), "why": str(error)})
            is_told = True
            await asyncio.sleep(RETRY_S)
        else:
            log.info("store", extra={"store": shared.place, "cluster": shared.cluster})
            return shared


async def _or_stop(work: Coroutine[Any, Any, T], stop: asyncio.Event) -> T:
    """What `work` gives, unless somebody stops us before."""
    doing, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise StoppedBefore
        return doing.result()
    finally:
        for task in (doing, stopping):
            task.cancel()
        await asyncio.wait({doing, stopping})


async def _restored(config: Config, restore: Restore | None, lost: Lost) -> None:
    if restore is None:
        raise ConfigError(
            f"the ledger of POOLD_NAME={config.name} is not in POOLD_STATE_DIR={config.state_dir}, but the host has a"
            " lease: bring the folder back, or give this host another name"
        )
    await restore(lost)


def _must_be_known(config: Config, notes: Notes) -> None:
    """The state folder is this host's. If its ledger is lost, it is the store that has it."""
    notes.must_be_of(config.name)
    noted = notes.read()
    if noted is None:
        notes.write(replace(notes.made(), name=config.name))
    elif noted.root and not care.is_there(config.ledger_path):
        log.error("the ledger is lost: the store is asked for it", extra={"path": str(config.ledger_path)})
        notes.change(root=0)


def _must_be_alone(notes: Notes) -> None:
    """What a member has may be carried on by others: alone it would be done twice."""
    noted = notes.read()
    if noted is not None and noted.epoch:
        raise ConfigError(
            f"POOLD_STORE is not set, but this host is a member of a cluster: others may carry on what it has. Set"
            f" POOLD_STORE again; or, if there is no such cluster any more, remove {notes}"
        )


def _tell_what_was_killed(guard: Guard, metrics: Metrics) -> None:
    """What became of the last lease, if it ended badly."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        told = orjson.loads(guard.killed.read_bytes())
        guard.killed.unlink()
        log.warning("a lease of this host was over, and its machines were killed", extra={"told": told})
        metrics.lease_fences_total.add(by="poold" if "why" in told else "warden")
