"""Seeing that there is a warden: found again after a restart, started if there is none, never two."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import sys
import time
from pathlib import Path

import orjson

from contract.__about__ import __version__
from poold import processes
from poold.errors import HostFault
from poold.lease.guard import Guard
from poold.lease.killing import kill_process
from poold.lifetimes import finish

START_LIMIT_S = 20.0  # for an interpreter on a busy host
LOOK_S = 0.02
MAX_LOG_BYTES = 1 << 20


async def ensure(guard: Guard) -> int:
    """There is a warden of this version when this returns, and it has read its folder; its pid."""
    found = await asyncio.to_thread(_found, guard)
    if found is not None and found[1] != __version__:
        await finish(asyncio.to_thread(kill_process, found[0], processes.started(found[0])))
        found = None
    if found is None:
        await _start(guard)
        found = await asyncio.to_thread(_until_it_is_there, guard)
    return found[0]


def dismiss(guard: Guard) -> None:
    """Nothing runs any more that a warden would have to kill. Nothing of it is left. Blocks."""
    found = _found(guard)
    if found is not None:
        kill_process(found[0], processes.started(found[0]))
    shutil.rmtree(guard.folder, ignore_errors=True)


async def _start(guard: Guard) -> None:
    """In a session of its own. Once it is there it takes the lock, or leaves if another has it."""
    with contextlib.suppress(FileNotFoundError):
        if guard.log.stat().st_size > MAX_LOG_BYTES:
            guard.log.unlink()
    root = Path(__file__).parents[2]
    argv = [sys.executable, "-m", "poold.lease.warden", str(guard.folder)]
    pid = await processes.start(argv, log=guard.log, cwd=root)
    processes.watch(pid).add_done_callback(lambda _: None)  # collected when it ends


def _until_it_is_there(guard: Guard) -> tuple[int, str]:
    give_up = time.monotonic() + START_LIMIT_S
    while time.monotonic() < give_up:
        if (found := _found(guard)) is not None:
            return found
        time.sleep(LOOK_S)
    raise HostFault("starting", "the warden", hint=f"it is not there after {START_LIMIT_S:g} s; see {guard.log}")


def _found(guard: Guard) -> tuple[int, str] | None:
    """The pid and the version of the warden that runs, once it is ready."""
    try:
        lock = os.open(guard.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            told = orjson.loads(os.read(lock, 4096))
            pid, version = int(told["pid"]), str(told["version"])
            return (pid, version) if Path(f"/proc/{pid}").exists() else None
        return None
    finally:
        os.close(lock)
    return None
