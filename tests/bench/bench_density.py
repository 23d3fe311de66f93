"""How many idle machines a host holds: claimed ones of 256 MiB, until 8 GiB are used.

python -m tests.bench.bench_density        Needs root; prints `name=value` lines.
"""

import statistics
import time
from pathlib import Path

from tests.bench.host import Host, open_host

IMAGE = "minimal"
BUDGET_MB = 8 * 1024
MOST = 180
AT = (1, 25, 50)  # how many machines there are when the time of a claim is looked at
AROUND = 5  # claims that one figure is the median of


def used_mb() -> float:
    """Memory that is not available any more, as the kernel counts it."""
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    kb = {name: int(value.split()[0]) for name, value in facts.items()}
    return (kb["MemTotal"] - kb["MemAvailable"]) / 1024


def pss_mb(host: Host) -> float:
    """The memory of all machines, shared pages counted once."""
    total = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(host.state).encode() in (entry / "cmdline").read_bytes():
                rollup = (entry / "smaps_rollup").read_text()
                total += int(rollup.split("\nPss:")[1].split()[0])
        except (OSError, IndexError):
            continue
    return total / 1024


def claim_ms(host: Host) -> float:
    host.wait_until_warm()
    began = time.perf_counter()
    status, sandbox = host.call("POST", "/v1/sandboxes", {"image": IMAGE})
    took = (time.perf_counter() - began) * 1000
    assert status == 201, sandbox
    return took


def main() -> None:
    with open_host(pool=f"{IMAGE}=1-1", POOLD_SLOTS=str(MOST + 4), POOLD_MEMORY_MB=str(1 << 20)) as host:
        host.wait_until_warm()
        before = used_mb()
        poold_before = host.rss_mb()
        claims: list[float] = []
        while len(claims) < MOST and used_mb() - before < BUDGET_MB:
            claims.append(claim_ms(host))
        host.wait_until_warm()
        print(f"machines={len(claims)}")
        print(f"machine_mb={(used_mb() - before) / len(claims):.1f}")
        print(f"machine_pss_mb={pss_mb(host) / (len(claims) + 1):.1f}")
        print(f"poold_kb_per_machine={(host.rss_mb() - poold_before) * 1024 / len(claims):.0f}")
        for count in AT:
            if len(claims) >= count:
                around = claims[max(0, count - AROUND) : count + AROUND - 1]
                print(f"claim_at_{count}_ms_p50={statistics.median(around):.2f}")


if __name__ == "__main__":
    main()
