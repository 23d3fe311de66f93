"""A group per machine: made when its process starts, removed after it ended.

Everything here blocks for some milliseconds and is called from threads; different machines may come at once.
"""

import contextlib
import errno
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from contract.models import Shape
from poold.cgroups.device import disk_of
from poold.cgroups.layout import Layout, find_layout
from poold.cgroups.limits import Limits, Usage, limits_of
from poold.errors import HostFault

log = logging.getLogger("poold.cgroups")

# Also what is removed: nothing that was not called like this by us is touched, and no name leads out of the folder.
MACHINE = re.compile(r"vm-[a-z2-7]{16}|build-[a-z0-9][a-z0-9._-]{0,99}")
NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
REMOVE_LIMIT_S = 5.0  # the last process of a group may still be on its way out
REMOVE_POLL_S = 0.01
HELP = {
    errno.EACCES: "poold needs to be root, or the group to be delegated to it",
    errno.EPERM: "poold needs to be root, or the group to be delegated to it",
    errno.EROFS: "control groups are mounted read-only, as in a container without privileges",
    errno.ESRCH: "the process is gone",
    errno.ENOSPC: "the host has as many groups as cgroup.max.descendants allows",
    errno.EINVAL: "the group above may allow less than this",
}


def open_cgroups(
    root: Path = Path("/sys/fs/cgroup"),
    *,
    name: str = "warren",
    io_device: Path | None = None,
    limits: Callable[[Shape], Limits] = limits_of,
    proc: Path = Path("/proc"),
) -> "Cgroups | None":
    """The groups of this host's machines, or None, with a reason in the log, where we may not make any.

    Two daemons on one host need two names: each takes all groups under its name for its own. `io_device` is a folder
    on the disk that machines use; without it, or if it is on no disk, disk throughput is not limited.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"name {name!r} must be a lower-case word")
    try:
        layout = find_layout(root, name, (proc / "self" / "cgroup").read_text())
        _make_homes(layout)
        if not layout.homes:
            raise HostFault("finding cgroup controllers in", str(root), hint="is it mounted, and may we write there?")
    except (OSError, HostFault) as error:
        log.warning("machines run without cgroup limits", extra={"why": str(error)})
        return None
    return Cgroups(layout, limits, _throttled(layout, io_device))


class Cgroups:
    """The groups of all machines of this host."""

    def __init__(self, layout: Layout, limits: Callable[[Shape], Limits], disk: str | None) -> None:
        self._layout = layout
        self._limits = limits
        self._disk = disk

    def begin(self, machine_id: str, pid: int, shape: Shape) -> None:
        """From now on `pid`, with all its threads, has the limits of `shape`.

        Raises `HostFault`; then the machine has no group, and the process is where it was.
        """
        _check(machine_id)
        made: list[Path] = []
        try:
            for home in dict.fromkeys(self._layout.homes.values()):
                with _told("making", home / machine_id):
                    (home / machine_id).mkdir()
                made.append(home / machine_id)
            self._write_limits(machine_id, self._limits(shape))
            for group in made:
                _write(group / "cgroup.procs", str(pid))
        except BaseException:
            _undo(made)
            raise

    def end(self, machine_id: str) -> None:
        """Remove the machine's group. Succeeds if there is none. Raises `HostFault` if processes stay in it."""
        _check(machine_id)
        give_up = time.monotonic() + REMOVE_LIMIT_S
        for home in self._layout.all_homes():
            _remove(home / machine_id, give_up)

    def found(self) -> frozenset[str]:
        """The machines that have a group, also those of a former daemon."""
        found = set()
        for home in self._layout.all_homes():
            with contextlib.suppress(FileNotFoundError):
                found |= {path.name for path in home.iterdir() if path.is_dir() and MACHINE.fullmatch(path.name)}
        return frozenset(found)

    def homes(self) -> list[str]:
        """The folders that hold the groups."""
        return [str(home) for home in self._layout.all_homes()]

    def usage(self, machine_id: str) -> Usage | None:
        """What the machine has used, or None if it has no group. Four short reads."""
        _check(machine_id)
        return self._layout.usage(machine_id)

    def close(self) -> None:
        """Remove what is above the machines' groups, unless machines go on running."""
        for home in self._layout.all_homes():
            with contextlib.suppress(OSError):  # not empty, or not there
                home.rmdir()

    def _write_limits(self, machine_id: str, limits: Limits) -> None:
        for setting in self._layout.settings(limits, self._disk):
            home = self._layout.homes.get(setting.controller)
            if home is None:
                continue  # said when it was found to be missing
            file = home / machine_id / setting.file
            if not (setting.optional and not file.exists()):
                _write(file, setting.line)


def _check(machine_id: str) -> None:
    if not MACHINE.fullmatch(machine_id):
        raise HostFault("naming a group after", repr(machine_id[:80]), hint="this is not a machine's id")


def _make_homes(layout: Layout) -> None:
    """Make what the groups will be in. A controller for which that is not possible is said, and done without."""
    for controller, home in list(layout.homes.items()):
        try:
            home.mkdir(exist_ok=True)
            layout.let_below(home, controller)
        except OSError as error:
            why = f"{home}: {error.strerror}"
            log.warning("no use of a cgroup controller", extra={"controller": controller, "why": why})
            del layout.homes[controller]
            with contextlib.suppress(OSError):  # of use to another controller, or not there
                home.rmdir()


def _throttled(layout: Layout, folder: Path | None) -> str | None:
    """The disk to throttle, if machines have one and the kernel can; what cannot be is said once, here."""
    if folder is None:
        return None
    try:
        disk = disk_of(folder)
        if disk is None:
            raise HostFault("finding the disk of", str(folder), hint="it is on none")
        for setting in layout.no_throttle(disk):  # changes nothing, and fails where setting one would
            if (home := layout.homes.get(setting.controller)) is None:
                return None
            _write(home / setting.file, setting.line)
    except (OSError, HostFault) as error:
        log.warning("disk throughput is not limited", extra={"folder": str(folder), "why": str(error)})
        return None
    return disk


@contextlib.contextmanager
def _told(doing: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = HELP.get(error.errno or 0, "")
        said = f"{error.strerror}" + (f" ({hint})" if hint else "")
        raise HostFault(doing, str(path), hint=said) from error


def _write(file: Path, line: str) -> None:
    with _told(f"writing {line!r} to", file):
        fd = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # a file of the kernel's is never made by us
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)


def _undo(groups: list[Path]) -> None:
    """Remove groups that a process may already be in. Version 1 has it come back to the group that it was started in;
    in version 2 there is one group, and to enter it was the last step.
    """
    for group in groups:
        with contextlib.suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                (group.parent.parent / "cgroup.procs").write_text(pid)
    give_up = time.monotonic() + REMOVE_LIMIT_S
    for group in groups:
        _remove(group, give_up)


def _remove(group: Path, give_up: float) -> None:
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > give_up:
                raise HostFault("removing", str(group), hint=_who_is_in(group) or str(error.strerror)) from error
        time.sleep(REMOVE_POLL_S)


def _who_is_in(group: Path) -> str:
    with contextlib.suppress(OSError):
        pids = (group / "cgroup.procs").read_text().split()
        return f"process {', '.join(pids[:5])} is still in it" if pids else ""
    return ""
