"""Slots with proxies, made by poold's own code, for the egress benchmark. Runs on the host of the benchmark's world.

    egress_slots cable PID     one slot whose cable ends in the namespace of that process, and not in a machine
    egress_slots idle COUNT    so many slots, with a proxy each that nobody uses: says memory and time of all of them

It ends when its input does.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contract.network import HostRule, Limits
from poold.egress.policy import Level, Policy
from poold.egress.proxies import Proxies, Told
from poold.net import Slots, open_slots
from poold.net.addresses import GUEST_ADDRESS, GUEST_MAC, PREFIX_LENGTH, TAP
from poold.net.namespace import inside
from poold.net.netlink import wire
from poold.net.nft import run_nft
from poold.net.rules import RULES
from poold.slots import Slot

BASE_UID = 299_000
IDLE_S = 10.0
NAMES = ("web.example.com", "big.example.com")
# What a slot lets through is no matter of the proxy's speed.
UNLIMITED = RULES.replace("limit rate 1000/second burst 500 packets", "limit rate 1000000/second burst 50000 packets")
POLICY = Policy(
    levels=(Level("sandbox", hosts=tuple(HostRule(name) for name in NAMES)),),
    limits=Limits(connections=4096, connects_per_sec=1_000_000),
)


def cable(slot: Slot, pid: int) -> None:
    """In the place of the tap a cable to the namespace of `pid`, which is the guest then. On a worker thread."""
    with inside(slot.netns):
        _run("nft", "flush", "ruleset")
        _run("ip", "link", "delete", TAP)
        _run("ip", "link", "add", TAP, "type", "veth", "peer", "name", "guest0", "netns", str(pid))
        wire(TAP)
        run_nft(UNLIMITED)
    there = ["nsenter", f"--target={pid}", "--net"]
    _run(*there, "ip", "link", "set", "guest0", "address", GUEST_MAC, "up")
    _run(*there, "ip", "address", "add", f"{GUEST_ADDRESS}/{PREFIX_LENGTH}", "dev", "guest0")


async def serve_cable(slots: Slots, proxies: Proxies, pid: int) -> None:
    slot = slots.take_nowait()
    await asyncio.to_thread(cable, slot, pid)
    proxy = await proxies.start(slot)
    try:
        await proxy.rule("sb-bench", POLICY)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await proxies.end(proxy)


async def measure_idle(slots: Slots, proxies: Proxies, count: int) -> None:
    started = [await proxies.start(slots.take_nowait()) for _ in range(count)]
    for number, proxy in enumerate(started):
        await proxy.rule(f"sb-bench{number}", POLICY)
    pids = _family(os.getpid())
    before = sum(map(_cpu_s, pids))
    await asyncio.sleep(IDLE_S)
    busy = (sum(map(_cpu_s, pids)) - before) / IDLE_S * 100
    print(f"{sum(map(_pss_mb, pids)) / count} {busy} {len(pids)}", flush=True)
    for proxy in started:
        await proxies.end(proxy)


def _family(parent: int) -> list[int]:
    """The process that makes proxies, and all proxies."""
    children = [pid for pid, its in _parents().items() if its == parent]
    return [member for child in children for member in (child, *_family(child))]


def _parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def _cpu_s(pid: int) -> float:
    """The time that a process has had, in ns in the scheduler's own count."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no memory")


async def main(what: str, number: int) -> None:
    count = number if what == "idle" else 1
    with tempfile.TemporaryDirectory(dir="/run") as name:
        folder = Path(name)
        async with open_slots(folder, count=count, base_uid=BASE_UID) as slots:
            proxies = Proxies(
                folder / "egress",
                slots.proxy_sockets,
                told=Told(),
                now_ms=lambda: int(time.time() * 1e3),
                environ=os.environ,
                log=folder / "log",
            )
            async with proxies.running():
                await (measure_idle if what == "idle" else serve_cable)(slots, proxies, number)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
