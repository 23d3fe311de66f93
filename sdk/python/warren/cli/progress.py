"""What takes long is told on standard error, if a person looks at it: a line that says so, or a bar for bytes."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

from warren_console import text

PATIENCE_S = 1.0  # what is done within it needs no words
TICK_S = 0.1
WHEEL = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
NAME_COLUMNS, BAR_COLUMNS = 30, 24
CLEAR = "\r\x1b[K"
GAP = "  "
USUAL_COLUMNS = 80  # of a terminal that does not know


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
        _write(CLEAR + busy_line(WHEEL[turn % len(WHEEL)], what, time.monotonic() - began, _columns()))
        turn += 1
    _write(CLEAR)


def busy_line(wheel: str, what: str, seconds: float, columns: int) -> str:
    """`⠋ creating a sandbox … 3 s`, within so many columns: a line that wraps cannot be written over."""
    took = f" … {seconds:.0f} s"
    return text.cut(text.cut(f"{wheel} {text.clean(what)}", max(2, columns - text.width(took))) + took, columns)


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
        _write(CLEAR + bar_line(self._what, done, total or self._total, now - self._began, _columns()))

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown and self._told > self._began:
            _write(CLEAR)


def bar_line(what: str, done: int, total: int | None, seconds: float, columns: int) -> str:
    """`name  ━━━━━━────  45%  12 MB/s  in 3s`, within so many columns: the bar gives way first, then the name."""
    speed = done / seconds if seconds > 0 else 0.0
    bar, figures = "", [text.size(done), f"{text.size(speed)}/s"]
    if total:
        part = min(1.0, done / total)
        full = round(part * BAR_COLUMNS)
        bar = "━" * full + "─" * (BAR_COLUMNS - full)
        figures.insert(0, f"{part:4.0%}")
        if speed > 0:
            figures.append(f"{text.span(max(0, total - done) / speed)} left")
    name = text.cut(text.clean(what), NAME_COLUMNS)
    whole = GAP.join(filter(None, [name, bar, *figures]))
    if text.width(whole) <= columns:
        return whole
    told = GAP.join(figures)
    return text.cut(GAP.join([text.cut(name, max(1, columns - len(GAP + told))), told]), columns)


def _columns() -> int:
    """Those of the terminal as it is now: it may have been resized. One is spared, because a full line may wrap."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return (columns or USUAL_COLUMNS) - 1


def _write(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody looks any more
        sys.stderr.write(line)
        sys.stderr.flush()
