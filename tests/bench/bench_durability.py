"""Durability: what kill -9 costs of what was acknowledged, in each mode, and what each mode costs.

python -m tests.bench.bench_durability [FOLDER]

`replicated`: acknowledged when S3 has it, looked for in the replica. `local`: acknowledged after fsync, looked for on
the same disk. `alone`: what Litestream would do by itself, acknowledged after fsync, looked for in the replica.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import uvloop

from poold.devstore import BUCKET
from poold.ledger import Ledger
from tests.doomed_host import ledger_of, place_of
from tests.kills import MODES, Killed, kills
from tests.replicas import put
from tests.s3server import running_s3

ROOT = Path(__file__).resolve().parent.parent.parent
KILLS = int(os.environ.get("WARREN_DURABILITY_KILLS", "200"))
SEED = int(os.environ.get("WARREN_SEED", "1"))
WRITERS = (1, 16, 64)
ROUNDS = 3  # of each mode, one after the other, so that all have the same load beside them
ROUND_S = 1.0


async def acks_s(ledger: Ledger, writers: int) -> list[float]:
    """Seconds that each acknowledgement took, of so many writers in one round."""
    took: list[float] = []
    until = time.perf_counter() + ROUND_S

    async def write() -> None:
        while (began := time.perf_counter()) < until:
            await ledger.write(partial(put, number=0))
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(write() for _ in range(writers)))
    return took


async def costs(folder: Path, store: str) -> None:
    for writers in WRITERS:
        took: dict[str, list[float]] = {mode: [] for mode in MODES}
        for turn in range(ROUNDS):
            for mode in MODES:
                name = f"cost-{mode}-{writers}-{turn}"
                async with ledger_of(mode, place_of(folder / name, f"{store}/{name}")) as ledger:
                    took[mode] += await acks_s(ledger, writers)
        local = figures(took["local"])
        for mode in MODES:
            per_s, p50, p99 = figures(took[mode])
            name = f"{mode}_{writers}"
            print(f"{name}_acks_per_s={per_s:.0f}")
            print(f"{name}_ack_ms_p50={p50 * 1e3:.1f}")
            print(f"{name}_ack_ms_p99={p99 * 1e3:.1f}")
            if mode != "local":
                print(f"{name}_acks_vs_local={per_s / local[0]:.3f}")
                print(f"{name}_ack_p50_vs_local={p50 / local[1]:.1f}")
                print(f"{name}_ack_p99_vs_local={p99 / local[2]:.1f}", flush=True)


def figures(took: list[float]) -> tuple[float, float, float]:
    """Acknowledgements a second, and the time of one: the median and the 99th percentile."""
    ordered = sorted(took)
    return len(took) / (ROUNDS * ROUND_S), ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]


def told(mode: str, rounds: list[Killed]) -> None:
    lost = [one.lost for one in rounds]
    print(f"{mode}_kills={len(rounds)}")
    print(f"{mode}_rows_lost={sum(lost)}")
    print(f"{mode}_kills_with_loss={sum(map(bool, lost))}")
    print(f"{mode}_rows_lost_p50={statistics.median(lost):.0f}")
    print(f"{mode}_rows_lost_max={max(lost)}")
    print(f"{mode}_kills_with_no_replica={sum(not one.has_replica for one in rounds)}", flush=True)


def main() -> None:
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as folder, running_s3() as s3:
        store = f"s3://{BUCKET}/bench"
        environ = {**os.environ, **s3.client()}
        for mode in MODES:
            told(mode, list(kills(mode, KILLS, Path(folder), store, environ=environ, seed=SEED)))
        os.environ.update(s3.client())
        uvloop.run(costs(Path(folder), store))


if __name__ == "__main__":
    main()
