"""Files that somebody may replace while we run: certificates, and the keys of those who sign tickets."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

EVERY_S = 1.0

Stamp = tuple[int, int, int]


class Watched:
    """Whether any of `paths` is another file than before, or has come or gone. Looks at most once a second."""

    def __init__(self, paths: Sequence[Path], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._paths = paths
        self._clock = clock
        self._next = float("-inf")
        self._stamps: list[Stamp | None] | None = None

    def is_due(self) -> bool:
        """A second has passed since the last look."""
        return self._clock() >= self._next

    def has_changed(self) -> bool:
        """Look, if it is time. The first look finds a change."""
        if not self.is_due():
            return False
        self._next = self._clock() + EVERY_S
        before, self._stamps = self._stamps, [_stamp(path) for path in self._paths]
        return self._stamps != before


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
