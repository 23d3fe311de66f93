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
        self._starts = 0  # that were ever expected
        # Statuses of children that ended before whoever started them could claim them, and the last start before that.
        self._early: dict[int, tuple[int, int]] = {}

    def open(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)

    def close(self) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def expect(self) -> int:
        """A child will be started, perhaps in a thread: keep statuses that nobody claims until `expected`.

        Returns the number of this start, for `claim`.
        """
        self._spawning += 1
        self._starts += 1
        return self._starts

    def expected(self) -> None:
        self._spawning -= 1
        if not self._spawning:
            self._early.clear()

    def claim(self, pid: int, on_exit: OnExit, start: int) -> None:
        """Call `on_exit` with the wait status of `pid`, once, from the loop and never from inside this call.

        What ended before `start` was expected was another process that had the same pid.
        """
        status, before = self._early.pop(pid, (0, 0))
        if before < start:
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
                self._early[pid] = status, self._starts
