"""A daemon that restores one machine, says which, and dies without a farewell.

python -m tests.conformance.doomed ENGINE FOLDER RUN_DIR
"""

import asyncio
import os
import sys
from pathlib import Path

from tests.conformance.bench import new_id, open_bench


async def main(name: str, folder: Path, run_dir: Path) -> None:
    async with open_bench(name, folder, run_dir) as bench:
        snapshot = await bench.snapshot()
        machine = await bench.engine.restore(snapshot, bench.slots.take_nowait(), new_id())
        print(machine.id, machine.pid, flush=True)
        os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
