"""The reaper: the only caller of waitpid. It hands each status to who asked for it, and buries orphans."""

import asyncio
import os
import signal
from collections.abc import Callable

OnExit = Callable[[int], None]


class Reaper:
    """Reaps every child as it ends. Lives on the loop; only `claim` knows pids from threads, after their hand-over."""

    def __init__(self) -> None:
        self._waiting: dict[int, OnExit] = {}
        self._spawning = 0
        # Statuses of children that ended before whoever started them could claim them.
        self._early: dict[int, int] = {}

    def open(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)

    def close(self) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def expect(self) -> None:
        """A child will be started, perhaps in a thread: keep statuses that nobody claims until `expected`."""
        self._spawning += 1

    def expected(self) -> None:
        self._spawning -= 1
        if not self._spawning:
            self._early.clear()

    def claim(self, pid: int, on_exit: OnExit) -> None:
        """Call `on_exit` with the wait status of `pid`, once, from the loop and never from inside this call."""
        status = self._early.pop(pid, None)
        if status is None:
            self._waiting[pid] = on_exit
        else:
            asyncio.get_running_loop().call_soon(on_exit, status)

    def reap(self) -> bool:
        """Reap every child that has ended. False if there are no children left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            on_exit = self._waiting.pop(pid, None)
            if on_exit is not None:
                on_exit(status)
            elif self._spawning:
                self._early[pid] = status
