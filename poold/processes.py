"""Processes that outlive us: started in sessions of their own, ended by pidfd, found again by their argv."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from poold.errors import EngineError
from poold.lifetimes import finish

# Of our environment, which may hold credentials: no business of a process that a guest may break into.
HANDED_ON = ("PATH", "LANG")
KILL_LIMIT_S = 10  # a process in uninterruptible disk sleep may take a while to go


async def start(argv: Sequence[str], *, log: Path, keep_fds: Sequence[int] = (), cwd: Path | None = None) -> int:
    """Start `argv` in a session of its own and return its pid. When cancelled, it may have been started."""

    def popen() -> int:
        with log.open("ab") as out:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=keep_fds,
                start_new_session=True,
                cwd=cwd,
                env={name: os.environ[name] for name in HANDED_ON if name in os.environ},
            )
        child.returncode = 0  # `watch` reaps it; Popen must not
        return child.pid

    try:
        return await finish(asyncio.to_thread(popen))
    except OSError as error:
        raise EngineError("starting", argv[0], hint=str(error)) from error


def watch(pid: int) -> "asyncio.Future[str]":
    """A future that is set to the reason once process `pid` is gone. If it is our child, it is reaped.

    Who cancels it watches no longer.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        ended.set_result("its process was gone")
        return ended

    def gone() -> None:
        loop.remove_reader(pidfd)
        if not ended.done():
            ended.set_result(_reap(pidfd))

    def forget(_: object) -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)

    ended.add_done_callback(forget)
    loop.add_reader(pidfd, gone)
    return ended


async def end(pid: int) -> None:
    """Kill `pid` and wait until it is gone. Succeeds if there is none."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(pidfd, gone.set)
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        async with asyncio.timeout(KILL_LIMIT_S):
            await gone.wait()
    except TimeoutError as error:
        raise EngineError("killing", f"process {pid}", hint="it does not end; look at its stack in /proc") from error
    finally:
        loop.remove_reader(pidfd)
        _reap(pidfd)
        os.close(pidfd)


def find(marker: str) -> list[int]:
    """The pids of all processes that have `marker` as one whole argument."""
    wanted = marker.encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def find_marked(option: str, prefix: str) -> dict[str, list[int]]:
    """Every process with the argument `option` followed by one that begins with `prefix`: by the rest of that one."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (mark := mark_of(int(entry.name), option)) is not None:
            rest = mark.removeprefix(prefix)
            if rest != mark:
                found[rest].append(int(entry.name))
    return dict(found)


def mark_of(pid: int, option: str) -> str | None:
    """The argument after `option` of process `pid`, if there is such a process with such arguments."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return os.fsdecode(arguments[arguments.index(os.fsencode(option)) + 1])
    except (OSError, ValueError, IndexError):
        return None


def owner(pid: int) -> int | None:
    """The user that process `pid` runs as, or None if there is none."""
    with contextlib.suppress(OSError):
        # As bytes: its name is in there, too, and a process may call itself anything.
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
    return None


def started(pid: int) -> str:
    """When the process began, in the kernel's own count: no other has had this number then."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    return "0"


def of_user(uid: int) -> list[int]:
    """The pids of all processes that run as `uid`."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if owner(pid) == uid]


def _reap(pidfd: int) -> str:
    """Collect the process if it is our child, and say how it ended."""
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return "its process ended"  # somebody else's child (a former daemon's), or reaped already
    if result is None:
        return "its process ended"
    if result.si_code == os.CLD_EXITED:
        return f"its process exited with status {result.si_status}"
    return f"its process was killed by {signal.Signals(result.si_status).name}"
