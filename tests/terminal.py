"""A terminal with a program of ours in it, and the person before it."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from typing import Any

LIMIT_S = 60.0


class Screen:
    """What a person sees and types."""

    def __init__(self, master: int, slave: int, process: "subprocess.Popen[bytes]") -> None:
        self._master, self._slave = master, slave
        self.process = process
        self.shown = b""

    def sees(self, pattern: bytes) -> bytes:
        """Read until the screen has shown `pattern`; gives all that was shown up to then."""
        give_up = time.monotonic() + LIMIT_S
        while not re.search(pattern, self.shown):
            left = give_up - time.monotonic()
            is_over = self.process.poll() is not None
            if select.select([self._master], [], [], 0.05)[0]:
                self.shown += os.read(self._master, 65536)
            elif is_over or left < 0:
                raise AssertionError(f"{pattern!r} is not in {self.shown!r}")
        return self.shown

    def types(self, data: bytes) -> None:
        os.write(self._master, data)

    def resizes(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def is_raw(self) -> bool:
        return not self.settings()[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def ends(self) -> int:
        """Its exit code; what it still shows is read meanwhile, or it could not end."""
        give_up = time.monotonic() + LIMIT_S
        while self.process.poll() is None or select.select([self._master], [], [], 0)[0]:
            assert time.monotonic() < give_up, f"it did not end: {self.shown!r}"
            if select.select([self._master], [], [], 0.01)[0]:
                self.shown += os.read(self._master, 65536)
        return int(self.process.returncode)


@contextlib.contextmanager
def open_screen(
    module: str, *words: str, environment: Mapping[str, str], columns: int = 100, rows: int = 30
) -> Iterator[Screen]:
    """A program of ours with `words` on a terminal of its own. It has ended behind the block, and the terminal is as
    it was before.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
    before = termios.tcgetattr(slave)
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=dict(environment),
        preexec_fn=_own_terminal,  # noqa: PLW1509 — no other thread of the test runs
    )
    screen = Screen(master, slave, process)
    try:
        yield screen
        assert process.returncode is not None, "the test did not see its end"
        assert screen.settings() == before
        assert b"Traceback" not in screen.shown, screen.shown
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


def _own_terminal() -> None:
    """So that control-C and control-D typed there are for it."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
