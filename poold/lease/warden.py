"""The warden: kills a host's machines when its lease is over and poold has not done so.

    python -m poold.lease.warden FOLDER

A process of its own that outlives poold: it works when poold is stopped, stuck or dead. It reads in `FOLDER`
(`poold.lease.guard`) until when the lease is held. From then on it kills, first poold, which might start more, then
machines and proxies; it writes down what it did, and ends. There is never more than one for a folder.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import time
from pathlib import Path
from typing import IO

import orjson

from contract.__about__ import __version__
from poold import processes
from poold.files import PRIVATE, put
from poold.lease.clock import boot_id, boottime_ns
from poold.lease.guard import Guard, Targets, Until
from poold.lease.killing import find, kill, kill_process

LOOK_S = 0.2  # a suspended host that wakes up has machines for so long, until we have looked
TRIES = 10
STAY_S = 3.0  # after the kill: what poold was starting when it died is killed as well
MCL_CURRENT, MCL_FUTURE = 1, 2
NEVER = b"-1000"  # as an oom_score_adj


def main() -> None:
    guard = Guard(Path(sys.argv[1]))
    with guard.lock.open("ab+") as lock:
        if not _is_only_one(lock):
            return
        lock.truncate(0)  # of one that is no more
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # of whoever stops poold with all that it started
        targets = guard.targets()
        find(targets)  # whatever this needs is loaded now
        _stay_in_memory()
        _introduce(lock)
        _watch(guard, targets)


def _is_only_one(lock: IO[bytes]) -> bool:
    """Whether the lock is ours now. poold, which looks whether there is a warden, has it for an instant."""
    for _ in range(TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(LOOK_S / TRIES)
    return False


def _watch(guard: Guard, targets: Targets) -> None:
    """Until there is nothing to be guarded any more."""
    until = Until(boot_id())
    while True:
        until = guard.read() or until  # the folder may be gone, or be on a disk that is
        with contextlib.suppress(OSError, ValueError):
            targets = guard.targets()
        if until.boot != boot_id() or until.kill_ns == 0:
            if not _runs(until):
                return
        elif boottime_ns() >= until.kill_ns:
            _end_all(guard, targets, until)
            return
        time.sleep(LOOK_S)


def _runs(until: Until) -> bool:
    """Whether poold is there to tell us more."""
    return until.pid != 0 and processes.started(until.pid) == until.started


def _end_all(guard: Guard, targets: Targets, until: Until) -> None:
    """Kill all, and go on for a while: a machine may have been on its way."""
    had_poold = kill_process(until.pid, until.started)
    began_ns = boottime_ns()
    killed = kill(targets)
    done_ns = boottime_ns()
    told = {
        "epoch": until.epoch,
        "late_ms": (began_ns - until.kill_ns) // 1_000_000,
        "took_ms": (done_ns - began_ns) // 1_000_000,
        "poold": until.pid if had_poold else None,
        "machines": killed,
    }
    with contextlib.suppress(OSError):  # it is for people
        put(guard.killed, orjson.dumps(told), PRIVATE)
    while boottime_ns() < done_ns + int(STAY_S * 1e9) and not _is_renewed(guard, until):
        kill(targets)
        time.sleep(LOOK_S)


def _is_renewed(guard: Guard, until: Until) -> bool:
    """Whether a new poold has begun: what runs from now on may."""
    now = guard.read()
    return now is not None and now != until


def _introduce(lock: IO[bytes]) -> None:
    lock.write(orjson.dumps({"pid": os.getpid(), "version": __version__}))
    lock.flush()


def _stay_in_memory() -> None:
    """Where we may: neither swapped out nor chosen when memory is short."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_bytes(NEVER)
    ctypes.CDLL(None).mlockall(MCL_CURRENT | MCL_FUTURE)


if __name__ == "__main__":
    main()
