"""The ledger as a daemon has it, with its replica where there is a store. This daemon is the only one on it."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from poold.config import Config
from poold.ledger import Ledger
from poold.ledger.covering import Replication
from poold.metrics import Metrics
from poold.replica import Litestream, Replica, replica_of
from poold.replica.litestream import Places, folder_of
from poold.replica.target import warn_of_untold


@dataclass(frozen=True)
class Opened:
    ledger: Ledger
    replica: Replica | None  # None where there is no store


@contextlib.asynccontextmanager
async def open_ledger(
    config: Config,
    metrics: Metrics,
    now_ms: Callable[[], int],
    *,
    epoch: int | None,
    check: Callable[[], None] = lambda: None,
) -> AsyncIterator[Opened]:
    """The ledger, brought to this program's version. Its replica is that of `epoch`; without one there is none.

    `check` raises `Fenced` when this host has lost its lease: nothing is acknowledged from then on.

    In durability `replicated` the store has all of it before the block begins.
    """

    def committed(seconds: float, group: int) -> None:
        metrics.ledger_commit_seconds.observe(seconds)
        metrics.ledger_group_size.observe(group)

    async with _replica(config, metrics, now_ms, epoch) as replica:
        way = None
        if replica is not None:
            way = Replication(replica.cover, config.durability == "replicated", lambda: replica.why, check)
        async with Ledger.open(config.ledger_path, observe=committed, replication=way) as ledger:
            _measure(metrics, ledger, replica)
            yield Opened(ledger, replica)


@contextlib.asynccontextmanager
async def _replica(
    config: Config, metrics: Metrics, now_ms: Callable[[], int], epoch: int | None
) -> AsyncIterator[Replica | None]:
    if config.store is None or epoch is None:
        yield None
        return

    def observe(is_ok: bool, took_s: float) -> None:
        metrics.ledger_replica_syncs_total.add(outcome="done" if is_ok else "failed")
        if is_ok:
            metrics.ledger_replica_sync_seconds.observe(took_s)

    places = Places(config.ledger_path, folder_of(config.state_dir), config.run_dir, epoch)
    target = replica_of(config.store, config.name, epoch)
    warn_of_untold(target)
    litestream = Litestream(places, target, config.environ)
    async with Replica(litestream, observe, now_ms).running() as replica:
        yield replica


def _measure(metrics: Metrics, ledger: Ledger, replica: Replica | None) -> None:
    """From now on every scrape asks how the replica is doing."""
    if replica is not None:
        metrics.ledger_replica_lag_seconds.read_from(lambda: {(): ledger.lag_s or 0.0})
        metrics.ledger_replica_up.read_from(lambda: {(): float(replica.is_up)})
        metrics.ledger_replica_restarts_total.read_from(lambda: {(): float(replica.restarts)})
