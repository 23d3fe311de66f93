"""How long it takes to get a machine: cold, restored and warm, beside crun and bwrap, interleaved in one run.

python -m tests.bench.bench_create [rounds]        Needs root; prints `name=value` lines.

*health* is measured until the guest has answered `/health`, *exec* until `true` has run in it as well.
Warm claims go through poold's HTTP interface; cold boots and restores are the engine's own.
"""

import asyncio
import contextlib
import functools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from contract.models import Exec, Shape
from poold.commands import run
from poold.engines import Machine, Snapshot
from poold.engines.qemu import QemuEngine
from poold.engines.qemu.accel import find_accel
from poold.engines.qemu.argv import Accel
from poold.images import Image, Images
from poold.link import Guest
from poold.net import Slots, open_slots
from poold.pool import Places, Pool
from tests.bench.host import IMAGES, Host, open_host

ROUNDS = 40
COLD_ROUNDS = 5
IMAGE = "minimal"
SHAPES = {"restore": Shape(IMAGE, 1, 256, 2048), "restore_1024": Shape(IMAGE, 1, 1024, 2048)}
TRUE = Exec(argv=["/bin/true"], env={}, cwd=None, user="user", stdin=None, timeout_ms=None)

Times = defaultdict[str, list[float]]


class Clock:
    """Milliseconds since the start of one measurement."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def ms(self) -> float:
        return (time.perf_counter() - self._began) * 1000


class Bare:
    """The engine without a daemon around it."""

    def __init__(self, folder: Path, accel: Accel, image: Image, slots: Slots) -> None:
        self.accel, self.image, self.slots = accel, image, slots
        self.engine = self.new_engine(folder)
        images = Images(IMAGES)
        places = Places(slots, memory_budget_mb=1 << 20, new_machine_id=lambda: "unused")
        self.pool = Pool(self.engine, images, places, sizes={})
        self.snapshots: dict[str, Snapshot] = {}

    def new_engine(self, folder: Path) -> QemuEngine:
        return QemuEngine(folder, accel=self.accel, socket_in=self.slots.socket_in, open_tap=self.slots.open_tap)

    def guest(self, machine: Machine) -> Guest:
        return Guest(functools.partial(self.engine.dial, machine), machine.ended)

    async def build(self) -> None:
        for name, shape in SHAPES.items():
            slot = self.slots.take_nowait()
            self.snapshots[name] = await self.engine.build_snapshot(self.image, shape, slot, self.pool.settle)
            await self.slots.give_back(slot)

    async def restore(self, name: str, times: Times) -> None:
        """`NAME_ms`: to a resumed VM. `NAME_health_ms`, `NAME_exec_ms`: to its guest's first answers."""
        slot = self.slots.take_nowait()
        clock = Clock()
        machine = await self.engine.restore(self.snapshots[name], slot, f"bench-{os.urandom(4).hex()}")
        await self.engine.resume(machine)
        times[name].append(clock.ms())
        guest = self.guest(machine)
        await guest.call("GET", "/health")
        times[f"{name}_health"].append(clock.ms())
        await _true(guest)
        times[f"{name}_exec"].append(clock.ms())
        guest.close()
        await self.engine.destroy(machine.id)
        await self.slots.give_back(slot)

    async def cold_boot(self, times: Times) -> None:
        clock = Clock()

        async def settle(machine: Machine) -> None:
            guest = self.guest(machine)
            while not await self.pool.answers(guest, machine):
                await asyncio.sleep(0.005)
            times["cold_boot"].append(clock.ms())
            await _true(guest)
            times["cold_boot_exec"].append(clock.ms())
            guest.close()

        slot = self.slots.take_nowait()
        with tempfile.TemporaryDirectory() as folder:
            engine = self.new_engine(Path(folder))
            await engine.build_snapshot(self.image, SHAPES["restore"], slot, settle)
            engine.close()
        await self.slots.give_back(slot)


async def _true(guest: Guest) -> None:
    async for _ in run(guest, TRUE):
        pass


@contextlib.asynccontextmanager
async def open_bare() -> AsyncIterator[Bare]:
    folder = Path(tempfile.mkdtemp(prefix="warren-bench-"))
    run_dir = Path(tempfile.mkdtemp(prefix="warren-bench-", dir="/run"))
    image = Images(IMAGES).find(IMAGE)
    try:
        async with open_slots(run_dir, count=4, base_uid=260_000) as slots:
            bare = Bare(folder, await find_accel(image), image, slots)
            yield bare
            bare.engine.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(run_dir, ignore_errors=True)


def claim(host: Host, times: Times) -> None:
    """One warm claim over HTTP, to an answered /health and to a first `true`."""
    clock = Clock()
    status, sandbox = host.call("POST", "/v1/sandboxes", {"image": IMAGE})
    assert status == 201, sandbox
    created = clock.ms()
    status, _ = host.call("GET", f"/v1/sandboxes/{sandbox['id']}/health")
    assert status == 200
    times["warm_health"].append(clock.ms())
    times["warm_create"].append(created)
    status, done = host.call("POST", f"/v1/sandboxes/{sandbox['id']}/exec", {"cmd": ["/bin/true"]})
    assert (status, done["exit_code"]) == (200, 0), done
    times["warm_exec"].append(clock.ms())
    host.call("DELETE", f"/v1/sandboxes/{sandbox['id']}")


@contextlib.contextmanager
def open_reference(image: Image) -> Iterator["subprocess.Popen[str]"]:
    argv = ["unshare", "--mount", sys.executable, "-m", "tests.bench.reference", str(image.rootfs)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.communicate()


def ask(process: "subprocess.Popen[str]", name: str) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    print(name, file=process.stdin, flush=True)
    return float(process.stdout.readline())


def report(times: Times) -> None:
    p50 = {name: statistics.median(values) for name, values in times.items()}
    for name in sorted(p50):
        print(f"{name}_ms_p50={p50[name]:.2f}")
    print(f"warm_health_ms_p99={statistics.quantiles(times['warm_health'], n=100)[98]:.2f}")
    print(f"warm_vs_crun={p50['warm_health'] / p50['crun']:.2f}")
    print(f"cold_boot_vs_warm={p50['cold_boot'] / p50['warm_health']:.0f}")
    print(f"restore_1024_vs_256={p50['restore_1024'] / p50['restore']:.2f}")


async def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    times: Times = defaultdict(list)
    variables = {"POOLD_DEFAULT_IMAGE": IMAGE}
    async with open_bare() as bare:
        await bare.build()
        with open_host(pool=f"{IMAGE}=1-1", **variables) as host, open_reference(bare.image) as reference:
            host.wait_until_warm()
            for number in range(rounds):
                for name in ("crun", "bwrap"):
                    times[name].append(ask(reference, name))
                for name in SHAPES:
                    await bare.restore(name, times)
                if number % max(1, rounds // COLD_ROUNDS) == 0:
                    await bare.cold_boot(times)
                claim(host, times)
                host.wait_until_warm()
    report(times)


if __name__ == "__main__":
    asyncio.run(main())
