"""Killing all that must not outlive a lease. Blocks; needs neither poold nor the store."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from poold import processes
from poold.lease.guard import Targets

GONE_LIMIT_S = 2.0  # for the killed to be gone; one that the kernel holds runs no instruction of its own any more
LOOK_AGAIN_S = 0.02
LOOKS = (
    2  # that find nobody, one after the other: whoever was just becoming a machine at the first is one at the second
)


def kill(targets: Targets, *, spare: Collection[int] = ()) -> list[int]:
    """Kill every process of `targets` until there is none. Gives their pids. Raises nothing."""
    killed: set[int] = set()
    empty = 0
    give_up = time.monotonic() + GONE_LIMIT_S
    while empty < LOOKS:
        _kill_groups(targets.groups)
        found = find(targets) - set(spare)
        for pid in found:
            _kill(pid, targets)
        fresh = found - killed
        killed |= found
        if not found or (time.monotonic() > give_up and not fresh):  # the rest is on its way out
            empty += 1
        time.sleep(LOOK_AGAIN_S)
    _collect(killed, give_up)
    return sorted(killed)


def _collect(killed: Collection[int], give_up: float) -> None:
    """Wait for those that are our own children, so that nothing is left of them: nobody else may know of them.

    They are if poold started anew in its place and finds what it had started before.
    """
    left = set(killed)
    while left:
        for pid in list(left):
            try:
                is_over = os.waitpid(pid, os.WNOHANG) != (0, 0)
            except ChildProcessError:
                is_over = True
            if is_over:
                left.discard(pid)
        if not left or time.monotonic() > give_up:
            return
        time.sleep(LOOK_AGAIN_S)


def find(targets: Targets) -> set[int]:
    """Who there is now of `targets`, apart from ourselves."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    found = {pid for pid in pids if _is_called(pid, targets)} | _in_groups(targets.groups)
    return found - {os.getpid()}


def kill_process(pid: int, started: str) -> bool:
    """Kill `pid` if it is the process that began then, and wait until it is gone. Whether there was one."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError):
        return False
    try:
        if processes.started(pid) != started:
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [], GONE_LIMIT_S)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)


def _kill(pid: int, targets: Targets) -> None:
    """By a descriptor, and after another look: a number may be another's by now."""
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if _is_called(pid, targets) or pid in _in_groups(targets.groups):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _is_called(pid: int, targets: Targets) -> bool:
    """Whether its arguments are those of a target. Of a process that has ended there are none."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    if any(all(os.fsencode(word) in arguments for word in words) for words in targets.arguments):
        return True
    for option, prefix in targets.marks:
        if os.fsencode(option) in arguments:
            after = arguments[arguments.index(os.fsencode(option)) + 1 :]
            if after and after[0].startswith(os.fsencode(prefix)):
                return True
    return False


def _kill_groups(groups: Iterable[str]) -> None:
    """In one step, where the kernel can (version 2, since 5.14)."""
    for group in groups:
        with contextlib.suppress(OSError):
            (Path(group) / "cgroup.kill").write_text("1")


def _in_groups(groups: Iterable[str]) -> set[int]:
    pids: set[int] = set()
    for group in groups:
        for path in Path(group).glob("*/cgroup.procs"):
            with contextlib.suppress(OSError):
                pids |= {int(pid) for pid in path.read_text().split()}
    return pids
