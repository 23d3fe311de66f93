"""How long the network slots of a host take. Needs root; prints `name=value` lines.

python -m tests.bench.bench_slots
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from poold.net import Slots, open_slots

ROUNDS = 200


async def p50_s(step: Callable[[], Awaitable[None]]) -> float:
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await step()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


async def renew(slots: Slots) -> None:
    await slots.give_back(slots.take_nowait())


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        began = time.perf_counter()
        async with open_slots(run_dir, count=200, base_uid=200_000) as slots:
            print(f"slot_make_200_s={time.perf_counter() - began:.3f}")
            print(f"slot_make_ms_p50={await p50_s(lambda: renew(slots)) * 1e3:.2f}")
            slot = slots.take_nowait()

            async def one_socket() -> None:
                (await slots.socket_in(slot)).close()

            print(f"socket_in_us_p50={await p50_s(one_socket) * 1e6:.0f}")
            began = time.perf_counter()
        print(f"slot_remove_200_s={time.perf_counter() - began:.3f}")


if __name__ == "__main__":
    asyncio.run(main())
