"""The ledger as a daemon has it: with no other daemon on it, and with its replica where there is a store."""

import contextlib
import fcntl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from poold.config import Config
from poold.errors import ConfigError
from poold.ledger import Ledger
from poold.ledger.covering import Replication
from poold.metrics import Metrics
from poold.replica import Litestream, Replica, replica_of
from poold.replica.litestream import Places

FIRST_EPOCH = 1  # of a host that has no lease


@dataclass(frozen=True)
class Opened:
    ledger: Ledger
    replica: Replica | None  # None where there is no store


@contextlib.asynccontextmanager
async def open_ledger(
    config: Config, metrics: Metrics, now_ms: Callable[[], int], *, epoch: int | None = FIRST_EPOCH
) -> AsyncIterator[Opened]:
    """The ledger, brought to this program's version. Its replica is that of `epoch`; with None it has none for now.

    In durability `replicated` the store has all of it before the block begins.
    """
    for folder in (config.state_dir, config.run_dir):
        folder.mkdir(parents=True, exist_ok=True)

    def committed(seconds: float, group: int) -> None:
        metrics.ledger_commit_seconds.observe(seconds)
        metrics.ledger_group_size.observe(group)

    with _only_one(config.state_dir):
        async with _replica(config, metrics, now_ms, epoch) as replica:
            way = None
            if replica is not None:
                way = Replication(replica.cover, config.durability == "replicated", lambda: replica.why)
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

    places = Places(config.ledger_path, config.state_dir / "litestream", config.run_dir, epoch)
    litestream = Litestream(places, replica_of(config.store, config.name, epoch), config.environ)
    async with Replica(litestream, observe, now_ms).running() as replica:
        yield replica


def _measure(metrics: Metrics, ledger: Ledger, replica: Replica | None) -> None:
    """From now on every scrape asks how the replica is doing."""
    if replica is not None:
        metrics.ledger_replica_lag_seconds.read_from(lambda: {(): ledger.lag_s or 0.0})
        metrics.ledger_replica_up.read_from(lambda: {(): float(replica.is_up)})
        metrics.ledger_replica_restarts_total.read_from(lambda: {(): float(replica.restarts)})


@contextlib.contextmanager
def _only_one(state_dir: Path) -> Iterator[None]:
    """Two daemons on one ledger would each believe that they own its machines."""
    with (state_dir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another poold runs on POOLD_STATE_DIR={state_dir}") from None
        yield
