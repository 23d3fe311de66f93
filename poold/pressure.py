"""Whether this host is so short of memory or disk that it must not take more machines. Decides; others act.

A host whose processors or disks are busy is slow, and gets through it. One that runs out of memory or disk breaks
what already runs in it. So by default only the latter is judged; the former can be, by giving it a threshold.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from poold.errors import HostFault

MB = 1 << 20


@dataclass(frozen=True)
class Readings:
    """What was read from the host at one moment. What it does not tell is None."""

    memory_available_mb: int
    memory_total_mb: int
    memory_stalled: float | None  # per cent of the last 10 s in which something waited for memory
    cpu_stalled: float | None
    io_stalled: float | None
    disk_free_mb: int
    disk_free_inodes: int | None


@dataclass(frozen=True)
class Threshold:
    """Pressure begins beyond `begins` and ends at `ends`, on the better side of it. Between, nothing changes."""

    begins: float
    ends: float


@dataclass(frozen=True)
class Thresholds:
    """The memory ones are floors of what is available, the stalled ones ceilings. None: not judged."""

    memory_available_mb: Threshold | None = field(default=Threshold(512, 768))
    memory_stalled: Threshold | None = field(default=Threshold(40.0, 20.0))
    disk_free_mb: Threshold | None = field(default=Threshold(2048, 3072))
    disk_free_inodes: Threshold | None = field(default=Threshold(10_000, 15_000))
    cpu_stalled: Threshold | None = None
    io_stalled: Threshold | None = None

    def __post_init__(self) -> None:
        for name, threshold in vars(self).items():
            is_floor = name in FLOORS
            if threshold is not None and (threshold.begins < threshold.ends) is not is_floor:
                better = "above" if is_floor else "below"
                raise ValueError(f"{name}: pressure must end {better} where it begins, got {threshold}")


@dataclass(frozen=True)
class Pressure:
    """What the host is short of: the worst first in `what`, all of it in `kinds`, and why in words."""

    what: str
    message: str
    kinds: frozenset[str] = frozenset()


# By reading: what it is called, and what is said of it. In the order in which they hurt.
FLOORS = {
    "memory_available_mb": ("memory", "{value:.0f} MB of memory are available"),
    "disk_free_mb": ("disk", "{value:.0f} MB of disk are free"),
    "disk_free_inodes": ("inodes", "{value:.0f} more files fit on the disk"),
}
CEILINGS = {
    "memory_stalled": ("memory_stalled", "something waited for memory {value:.0f} % of the time"),
    "io_stalled": ("io_stalled", "something waited for a disk {value:.0f} % of the time"),
    "cpu_stalled": ("cpu_stalled", "something waited for a processor {value:.0f} % of the time"),
}


def judge(readings: Readings, thresholds: Thresholds, *, was: Pressure | None = None) -> Pressure | None:
    """What the host is short of, or None. `was` is the last judgement: what it had ends later than it would begin."""
    had = frozenset() if was is None else was.kinds
    found = list(_pressed(readings, thresholds, had))
    if not found:
        return None
    what, reason = found[0]
    return Pressure(what, f"this host is short of {what}: {reason}", frozenset(kind for kind, _ in found))


def _pressed(readings: Readings, thresholds: Thresholds, had: frozenset[str]) -> Iterator[tuple[str, str]]:
    for name, (what, words) in (FLOORS | CEILINGS).items():
        value: float | None = getattr(readings, name)
        threshold: Threshold | None = getattr(thresholds, name)
        if value is None or threshold is None:
            continue
        limit = threshold.ends if what in had else threshold.begins
        if value < limit if name in FLOORS else value > limit:
            yield what, f"{words.format(value=value)}, the limit is {limit:.0f}"


def read(state_dir: Path, proc: Path = Path("/proc")) -> Readings:
    """The host as it is now. Some short reads of /proc and a statvfs; raises `HostFault` if the host hides them."""
    try:
        memory = _meminfo((proc / "meminfo").read_text())
        disk = os.statvfs(state_dir)
        return Readings(
            memory_available_mb=memory["MemAvailable"] // 1024,
            memory_total_mb=memory["MemTotal"] // 1024,
            memory_stalled=_stalled(proc / "pressure" / "memory"),
            cpu_stalled=_stalled(proc / "pressure" / "cpu"),
            io_stalled=_stalled(proc / "pressure" / "io"),
            disk_free_mb=disk.f_bavail * disk.f_frsize // MB,
            # Some file systems make inodes as they need them, and say that they have none at all.
            disk_free_inodes=disk.f_favail if disk.f_files else None,
        )
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise HostFault("reading the state of", "this host", hint=f"{type(error).__name__}: {error}") from error


def _meminfo(text: str) -> dict[str, int]:
    """The kilobytes of each line of /proc/meminfo."""
    lines = (line.partition(":") for line in text.splitlines() if line.endswith(" kB"))
    return {name: int(rest.split()[0]) for name, _, rest in lines}


def _stalled(file: Path) -> float | None:
    """`some avg10` of a pressure file, or None where the kernel keeps none (or is told not to)."""
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith("some "):
                facts = dict(word.split("=", 1) for word in line.split()[1:])
                return float(facts["avg10"])
    return None
