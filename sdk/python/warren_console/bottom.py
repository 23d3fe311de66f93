"""The bottom of a terminal: a line that is written over and over, and lines above it that stay.

While it is there, what is typed is not shown: it would stand in the middle of it. A prompt shows it.
"""

import contextlib
import os
import sys
import termios
from collections.abc import Iterator
from typing import Any

from warren_console.output import Output

CLEAR = "\r\x1b[K"
KEYBOARD = 0
PIECE_BYTES = 4096


class Bottom:
    """Of a terminal that is ours from here on."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._is_written = False  # something that is to be cleared
        self._prompt: str | None = None

    @property
    def is_asking(self) -> bool:
        return self._prompt is not None

    def above(self, lines: list[str]) -> None:
        """Lines that stay. They were cleaned."""
        if lines:
            self._out.raw(self._cleared() + "\n".join(lines) + "\n" + (self._prompt or ""))
            self._is_written = self.is_asking

    def line(self, line: str) -> None:
        """What the last line shows from now on; a prompt has precedence."""
        if not self.is_asking:
            self._out.raw(self._cleared() + line)
            self._is_written = True

    def ask(self, prompt: str) -> None:
        """Show a prompt. What was typed before it was not meant for it."""
        with contextlib.suppress(termios.error):
            termios.tcflush(KEYBOARD, termios.TCIFLUSH)
        _set_echo(is_on=True)
        self._out.raw(self._cleared() + prompt)
        self._prompt, self._is_written = prompt, True

    def typed(self) -> str | None:
        """A line that was typed, or None if the keyboard has ended. To be called when there is one."""
        data = os.read(KEYBOARD, PIECE_BYTES)
        self._prompt, self._is_written = None, False
        if not data.endswith(b"\n"):  # the end was typed, and not a new line
            self._out.raw("\n")
        _set_echo(is_on=False)
        return data.decode("utf-8", "replace").strip() if data else None

    def withdraw(self) -> None:
        """Nobody needs to answer any more."""
        if self.is_asking:
            self._out.raw(self._cleared())
            self._prompt, self._is_written = None, False
            _set_echo(is_on=False)

    def _cleared(self) -> str:
        return CLEAR if self._is_written else ""

    def __enter__(self) -> "Bottom":
        self._kept = _settings()
        _set_echo(is_on=False)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # the window may be gone
            self._out.raw(self._cleared())
        if self._kept is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(KEYBOARD, termios.TCSADRAIN, self._kept)


def has_person(out: Output) -> bool:
    """Somebody sees what is shown, and can type."""
    return out.is_terminal and sys.stdin is not None and sys.stdin.isatty()


def _settings() -> list[Any] | None:
    with contextlib.suppress(termios.error):
        return termios.tcgetattr(KEYBOARD)
    return None


def _set_echo(*, is_on: bool) -> None:
    with contextlib.suppress(termios.error):
        settings = termios.tcgetattr(KEYBOARD)
        settings[3] = settings[3] | termios.ECHO if is_on else settings[3] & ~termios.ECHO
        termios.tcsetattr(KEYBOARD, termios.TCSADRAIN, settings)


@contextlib.contextmanager
def open_pipe() -> Iterator[tuple[int, int]]:
    """To wake who waits: a full one wakes as well as another byte."""
    wait, wake = os.pipe()
    os.set_blocking(wake, False)
    try:
        yield wait, wake
    finally:
        os.close(wait)
        os.close(wake)
