"""One terminal session: our terminal on this side, the sandbox's on the other, and bytes between them.

The main thread reads the keyboard; a second one shows what comes. Signals and the other side's end reach the
main thread through a pipe, so that there is one place where it waits.
"""

import contextlib
import os
import select
import signal
import termios
import threading
import tty
from collections.abc import Iterator
from typing import Protocol

from warren_console.ansi import Modes, WithoutQueries
from warren_console.output import write_all

KEYBOARD, SCREEN = 0, 1
MAX_SIDE = 1000  # the host's limit
USUAL_SIZE = (80, 24)
PIECE_BYTES = 1 << 16
SHOW_LIMIT_S = 2.0  # after the end, for a terminal that does not take what it is sent
RESIZED, ENDED = b"r", b"e"


def terminal_size() -> tuple[int, int]:
    """Columns and rows, as a host accepts them."""
    columns, rows = os.get_terminal_size(SCREEN)
    if not columns or not rows:  # some serial consoles do not know
        return USUAL_SIZE
    return min(columns, MAX_SIDE), min(rows, MAX_SIDE)


class Terminal(Protocol):
    """The other side: a terminal in a sandbox. One thread iterates over it, another one calls the rest."""

    def __iter__(self) -> Iterator[bytes]:
        """What it shows, until it has ended or was closed."""
        ...

    def write(self, data: bytes, /) -> None: ...

    def resize(self, columns: int, rows: int, /) -> None: ...

    def close(self) -> None:
        """Hang up. What runs there lives on."""
        ...


class Session:
    """From the first byte to the last. `failure` is what `terminal` raises when its connection is lost, or worse.

    `error` is what went wrong at the other side, if anything did.
    """

    def __init__(self, terminal: Terminal, failure: type[Exception], *, detach: bytes, is_again: bool) -> None:
        self.error: Exception | None = None
        self._terminal = terminal
        self._failure = failure
        self._detach = detach  # empty: no key does
        self._is_again = is_again
        # Until somebody types, what comes to one who is back may be old.
        self._old: WithoutQueries | None = WithoutQueries() if is_again else None
        self._has_typed = threading.Event()
        self._is_left = threading.Event()
        self._modes = Modes()

    def run(self) -> bool:
        """Until the other side has ended, or somebody typed the detach key: then it gives True.

        Both may happen at once: who is told True looks whether there was an end.

        The terminal is as it was before, however this ends.
        """
        with _pipe() as (wait, wake), _raw_terminal(self._modes), _resizes_told(wake):
            showing = threading.Thread(target=self._show, args=(wake,), daemon=True)
            showing.start()
            try:
                if self._is_again:
                    self._ask_to_redraw()
                is_left = self._type(wait)
            except self._failure:
                is_left = False
            finally:
                self._is_left.set()
                self._terminal.close()
                showing.join(SHOW_LIMIT_S)
        return is_left

    def _type(self, wait: int) -> bool:
        while True:
            ready, _, _ = select.select([KEYBOARD, wait], [], [])
            if wait in ready:
                told = os.read(wait, 64)
                if ENDED in told:
                    return False
                if RESIZED in told:
                    self._terminal.resize(*terminal_size())
            if KEYBOARD in ready:
                typed = os.read(KEYBOARD, PIECE_BYTES)
                before, found, _ = typed.partition(self._detach) if self._detach else (typed, b"", b"")
                self._has_typed.set()
                if before:
                    self._terminal.write(before)
                if found or not typed:  # or the terminal itself is gone
                    return True

    def _show(self, wake: int) -> None:
        try:
            for data in self._terminal:
                if not self._is_left.is_set():
                    self._write(data)
        except self._failure as error:
            self.error = error
        except OSError:
            pass  # our own terminal is gone
        finally:
            with contextlib.suppress(OSError):  # nobody waits any more
                os.write(wake, ENDED)

    def _write(self, data: bytes) -> None:
        if self._old is not None and self._has_typed.is_set():
            data, self._old = self._old.rest() + data, None
        elif self._old is not None:
            data = self._old(data)
        self._modes.saw(data)
        write_all(SCREEN, data)

    def _ask_to_redraw(self) -> None:
        """A program that fills the screen draws it anew when the size changes; to the same size is no change."""
        columns, rows = terminal_size()
        self._terminal.resize(columns, max(1, rows - 1))
        self._terminal.resize(columns, rows)


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    wait, wake = os.pipe()
    try:
        yield wait, wake
    finally:
        os.close(wait)
        os.close(wake)


@contextlib.contextmanager
def _raw_terminal(modes: Modes) -> Iterator[None]:
    """Every key is ours during the block. After it the terminal is as it was, its modes too."""
    kept = termios.tcgetattr(KEYBOARD)
    try:
        tty.setraw(KEYBOARD, termios.TCSADRAIN)  # what was typed ahead is not lost
        yield
    finally:
        with contextlib.suppress(OSError):  # the window may be gone
            write_all(SCREEN, modes.undo())
        with contextlib.suppress(termios.error):
            termios.tcsetattr(KEYBOARD, termios.TCSADRAIN, kept)


@contextlib.contextmanager
def _resizes_told(wake: int) -> Iterator[None]:
    # Any signal wakes who waits: one that comes just before the wait would else be heard only after it.
    os.set_blocking(wake, False)
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    kept = signal.signal(signal.SIGWINCH, lambda *_: os.write(wake, RESIZED))
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, kept)
        signal.set_wakeup_fd(before)
