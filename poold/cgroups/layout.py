"""The two versions of control groups: where their groups are, and which file of a group means what.

Version 1 has a tree per controller. Groups are made below the group that poold itself is in, so that what limits
poold limits its machines. Version 2 has one tree, in which a group with processes of its own cannot limit groups
below it; there they are made at the top of the tree that we see.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from poold.cgroups.limits import Limits, Usage

log = logging.getLogger("poold.cgroups")

PERIOD_US = 100_000  # in which a machine may use its share of processor time: the kernel's own default
CONTROLLERS = {"cpu": "cpu", "cpuacct": "cpu time", "memory": "memory", "pids": "pids", "blkio": "disk"}
CONTROLLERS_V2 = {"cpu": "cpu", "memory": "memory", "pids": "pids", "io": "disk"}


@dataclass(frozen=True)
class Setting:
    """A line to be written to a file of a group. `optional` is one that not every kernel has the file for."""

    controller: str
    file: str
    line: str
    optional: bool = False


class Layout:
    """One version of control groups on one host."""

    version: int

    def __init__(self, homes: dict[str, Path], former: Mapping[str, tuple[Path, ...]] | None = None) -> None:
        self.homes = homes  # by controller: the folder that holds a group for each machine; several may have the same
        self._former = former or {}  # such folders of a former daemon that was started elsewhere in the tree

    def settings(self, limits: Limits, disk: str | None) -> Iterator[Setting]:
        """What has to be written for `limits` to hold; `disk` is what to throttle, if anything."""
        raise NotImplementedError

    def let_below(self, home: Path, controller: str) -> None:
        """Let the groups in `home` have `controller`."""

    def no_throttle(self, disk: str) -> Iterator[Setting]:
        """What says that `disk` has no limit of throughput."""
        raise NotImplementedError

    def usage(self, machine_id: str) -> Usage | None:
        """What the machine has used, or None if it has no group. What no controller counts is 0.

        Of memory only what it alone has: neither the page cache of its drive, which the kernel takes back when somebody
        needs it, nor pages of the snapshot, which are all clones' and are counted as the first one's that touched them.
        """
        raise NotImplementedError

    def all_homes(self) -> list[Path]:
        """Every folder that may hold a group of ours, each once."""
        return list(dict.fromkeys([*self.homes.values(), *(home for homes in self._former.values() for home in homes)]))

    def _read(self, controller: str, machine_id: str, file: str, key: bytes | None = None) -> int | None:
        """The number in `file`, or in its line that begins with `key`. None if there is no such group or file."""
        homes = [self.homes[controller], *self._former.get(controller, ())] if controller in self.homes else []
        for home in homes:
            # Not Path: this is read for every machine at every scrape.
            with contextlib.suppress(OSError, ValueError, IndexError):
                fd = os.open(f"{home}/{machine_id}/{file}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    words = os.read(fd, 4096).split()
                finally:
                    os.close(fd)
                return int(words[0] if key is None else words[words.index(key) + 1])
        return None


class V1(Layout):
    version = 1

    def settings(self, limits: Limits, disk: str | None) -> Iterator[Setting]:
        memory = str(limits.memory_mb << 20)
        yield Setting("cpu", "cpu.cfs_period_us", str(PERIOD_US))
        yield Setting("cpu", "cpu.cfs_quota_us", str(int(limits.vcpus * PERIOD_US)))
        yield Setting("memory", "memory.limit_in_bytes", memory)
        # Memory and swap together; only where the kernel counts swap. It may not be below the line before.
        yield Setting("memory", "memory.memsw.limit_in_bytes", memory, optional=True)
        yield Setting("pids", "pids.max", str(limits.pids))
        if disk is not None and limits.io_bytes_per_s is not None:
            line = f"{disk} {limits.io_bytes_per_s}"
            yield Setting("blkio", "blkio.throttle.read_bps_device", line)
            yield Setting("blkio", "blkio.throttle.write_bps_device", line)

    def no_throttle(self, disk: str) -> Iterator[Setting]:
        yield Setting("blkio", "blkio.throttle.read_bps_device", f"{disk} 0")
        yield Setting("blkio", "blkio.throttle.write_bps_device", f"{disk} 0")

    def usage(self, machine_id: str) -> Usage | None:
        numbers = (
            self._read("cpuacct", machine_id, "cpuacct.usage"),
            self._read("memory", machine_id, "memory.stat", b"rss"),
            self._read("pids", machine_id, "pids.current"),
            self._read("memory", machine_id, "memory.oom_control", b"oom_kill"),
        )
        return _usage(numbers, per_second=1_000_000_000)


class V2(Layout):
    version = 2

    def settings(self, limits: Limits, disk: str | None) -> Iterator[Setting]:
        yield Setting("cpu", "cpu.max", f"{int(limits.vcpus * PERIOD_US)} {PERIOD_US}")
        yield Setting("memory", "memory.max", str(limits.memory_mb << 20))
        yield Setting("memory", "memory.swap.max", "0", optional=True)
        yield Setting("memory", "memory.oom.group", "1", optional=True)
        yield Setting("pids", "pids.max", str(limits.pids))
        if disk is not None and limits.io_bytes_per_s is not None:
            rate = limits.io_bytes_per_s
            yield Setting("io", "io.max", f"{disk} rbps={rate} wbps={rate}")

    def let_below(self, home: Path, controller: str) -> None:
        (home / "cgroup.subtree_control").write_text(f"+{controller}")

    def no_throttle(self, disk: str) -> Iterator[Setting]:
        yield Setting("io", "io.max", f"{disk} rbps=max wbps=max")

    def usage(self, machine_id: str) -> Usage | None:
        numbers = (
            self._read("cpu", machine_id, "cpu.stat", b"usage_usec"),
            self._read("memory", machine_id, "memory.stat", b"anon"),
            self._read("pids", machine_id, "pids.current"),
            self._read("memory", machine_id, "memory.events", b"oom_kill"),
        )
        return _usage(numbers, per_second=1_000_000)


def _usage(numbers: tuple[int | None, int | None, int | None, int | None], *, per_second: int) -> Usage | None:
    if numbers == (None,) * 4:
        return None
    cpu, memory, pids, kills = (number or 0 for number in numbers)
    return Usage(cpu_s=cpu / per_second, memory_bytes=memory, pids=pids, oom_kills=kills)


def find_layout(root: Path, name: str, own_groups: str) -> Layout:
    """How groups of `name` are laid out under `root`. `own_groups` is our /proc/self/cgroup.

    May enable controllers of version 2 for groups at the top. One that is missing is logged, and the others are used.
    """
    if (root / "cgroup.controllers").exists():
        return _find_v2(root, name)
    return _find_v1(root, name, _paths(own_groups))


def _find_v1(root: Path, name: str, own: Mapping[str, str]) -> Layout:
    homes: dict[str, Path] = {}
    former: dict[str, tuple[Path, ...]] = {}
    for controller, what in CONTROLLERS.items():
        tree = (root / controller).resolve()  # often a link: one tree may have several controllers
        if not (tree / "cgroup.procs").exists():
            _missing(controller, what)
            continue
        below = tree / own.get(controller, "").lstrip("/")
        # Inside a container the path may be the host's, and what we see is already our part of the tree.
        homes[controller] = (below if below.is_dir() else tree) / name
        former[controller] = tuple(home for home in _folders_called(tree, name) if home != homes[controller])
    return V1(homes, former)


def _find_v2(root: Path, name: str) -> Layout:
    homes = {}
    for controller, what in CONTROLLERS_V2.items():
        if controller not in (root / "cgroup.controllers").read_text().split():
            _missing(controller, what)
            continue
        try:
            _enable(root, controller)
            homes[controller] = root / name
        except OSError as error:  # as in a container, whose own processes are at the top of what it sees
            _missing(controller, what, why=f"{root}/cgroup.subtree_control: {error.strerror}")
    return V2(homes)


def _enable(group: Path, controller: str) -> None:
    """Let groups below `group` have `controller`. Stays so: others may have come to use it as well."""
    control = group / "cgroup.subtree_control"
    if controller not in control.read_text().split():
        control.write_text(f"+{controller}")


def _paths(own_groups: str) -> dict[str, str]:
    """Our own group in each tree, from lines like `4:memory:/a/b` and `3:cpu,cpuacct:/`."""
    found = {}
    for line in own_groups.splitlines():
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _folders_called(tree: Path, name: str) -> list[Path]:
    return [type(tree)(folder) / name for folder, below, _ in os.walk(tree) if name in below]


def _missing(controller: str, what: str, why: str = "the kernel does not offer it here") -> None:
    log.warning("machines have no such limit", extra={"controller": controller, "limit": what, "why": why})
