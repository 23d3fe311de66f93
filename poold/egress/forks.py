"""Where proxies come from: the zygote (`poold.egress.zygote`), as poold has it."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import orjson

from poold.errors import NetError
from poold.lifetimes import finish
from poold.slots import ProxySockets, Slot

UID_OFFSET = 1_000_000  # a proxy's user is its slot's, plus this: not the machine's own, and no other proxy's
FORK_LIMIT_S = 20.0  # on a busy host, with a zygote that is just starting
KILL_LIMIT_S = 1.0
MAX_LOG_BYTES = 4 << 20
# Of poold's environment, which may hold what is no business of a process that reads what guests say.
HANDED_ON = ("PATH", "PYTHONPATH", "LANG")


def user_of(slot: Slot) -> int:
    """Who the slot's proxy runs as. No other process does."""
    return slot.uid + UID_OFFSET


class Zygote:
    """The process that makes proxies. Started when it is needed, and again if it ends."""

    def __init__(self, folder: Path, environ: Mapping[str, str], log: Path) -> None:
        self._folder = folder
        self._log = log
        self._environ = {name: environ[name] for name in HANDED_ON if name in environ}
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._turn = asyncio.Lock()

    async def fork(self, slot: Slot, sockets: ProxySockets, control: socket.socket) -> int:
        """A new proxy for `slot`; its pid. The sockets are its own copies."""
        asked = orjson.dumps({"slot": slot.number, "uid": user_of(slot)})
        passed = [*vars(sockets).values(), control]
        async with self._turn:
            try:
                return await finish(asyncio.to_thread(self._fork, asked, passed), undo=_kill)
            except (OSError, ValueError) as error:
                raise NetError("start", f"the proxy of slot {slot.number}", hint=str(error)) from error

    def close(self) -> None:
        """End it. The proxies go on. Blocks."""
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._line = self._process = None

    def _fork(self, asked: bytes, passed: list[socket.socket]) -> int:
        if self._line is None or self._process is None or self._process.poll() is not None:
            self.close()
            self._line = self._start()
        try:
            return _ask(self._line, asked, passed)
        except BaseException:
            self.close()  # here, also if nobody waits for us any more: a late answer must not become the next one's
            raise

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(FORK_LIMIT_S)
        with theirs, self._open_log() as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "poold.egress.zygote", str(theirs.fileno()), str(self._folder)],
                stdin=subprocess.DEVNULL,
                # Not our own: who reads those to their end would wait for the last of the proxies.
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=self._environ,
                start_new_session=True,  # a terminal's control-c is for poold
            )
        return ours

    def _open_log(self) -> IO[bytes]:
        """Proxies say little there; what was said long ago goes."""
        with contextlib.suppress(FileNotFoundError):
            if self._log.stat().st_size > MAX_LOG_BYTES:
                self._log.unlink()
        return self._log.open("ab")


def _ask(line: socket.socket, asked: bytes, passed: list[socket.socket]) -> int:
    socket.send_fds(line, [asked], [each.fileno() for each in passed])
    answer = line.recv(4096)
    if not answer:
        raise OSError("the process that starts proxies has ended; its last words are in egress.log")
    pid: int = orjson.loads(answer)["pid"]
    return pid


def _kill(pid: int) -> None:
    """End a proxy that has just begun, and that nobody wants any more. Its sockets are free when this returns."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], KILL_LIMIT_S)
        finally:
            os.close(pidfd)
