"""What takes long is told on standard error, if a person looks at it: a line that says so, or a bar for bytes."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from warren_console import text

PATIENCE_S = 1.0  # what is done within it needs no words
TICK_S = 0.1
WHEEL = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
BAR_COLUMNS = 24
CLEAR = "\r\x1b[K"


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """Say `what` is going on while the block runs, once it has taken a second."""
    if not sys.stderr.isatty():
        yield
        return
    is_done = threading.Event()
    telling = threading.Thread(target=_tell, args=(what, is_done), daemon=True)
    telling.start()
    try:
        yield
    finally:
        is_done.set()
        telling.join()


def _tell(what: str, is_done: threading.Event) -> None:
    began = time.monotonic()
    if is_done.wait(PATIENCE_S):
        return
    turn = 0
    while not is_done.wait(TICK_S):
        _write(f"{CLEAR}{WHEEL[turn % len(WHEEL)]} {text.clean(what)} … {time.monotonic() - began:.0f} s")
        turn += 1
    _write(CLEAR)


class Bar:
    """Bytes on their way: a bar if their number is known, and how fast they go. As a block: it is gone after it."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what, self._total = what, total
        self._began = self._told = time.monotonic()
        self._is_shown = sys.stderr.isatty()

    def __call__(self, done: int, total: int | None = None) -> None:
        """What the client calls with every piece."""
        now = time.monotonic()
        if not self._is_shown or now - self._began < PATIENCE_S or now - self._told < TICK_S:
            return
        self._told = now
        _write(CLEAR + bar_line(self._what, done, total or self._total, now - self._began))

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown and self._told > self._began:
            _write(CLEAR)


def bar_line(what: str, done: int, total: int | None, seconds: float) -> str:
    """`name  ━━━━━━────  45%  12 MB/s  in 3s`"""
    speed = done / seconds if seconds > 0 else 0.0
    parts = [text.cut(text.clean(what), 30)]
    if total:
        part = min(1.0, done / total)
        full = round(part * BAR_COLUMNS)
        parts += ["━" * full + "─" * (BAR_COLUMNS - full), f"{part:4.0%}"]
    parts += [text.size(done), f"{text.size(speed)}/s"]
    if total and speed > 0:
        parts.append(f"{text.span(max(0, total - done) / speed)} left")
    return "  ".join(parts)


def _write(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody looks any more
        sys.stderr.write(line)
        sys.stderr.flush()
