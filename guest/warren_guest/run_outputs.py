"""Outputs of tools that are too long for an event: whole, as files that only the superuser reads, oldest gone first."""

from collections import deque
from pathlib import Path

FILE_LIMIT = 8 << 20
TOTAL_LIMIT = 256 << 20


class Outputs:
    """A folder of files. Each call blocks and is for a thread; one at a time."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._kept: deque[tuple[Path, int]] = deque()
        self._size = 0
        self._number = 0

    def keep(self, text: str) -> str | None:
        """The path of a file with `text`, at most `FILE_LIMIT` bytes of it; None if the disk has no place for it."""
        data = text.encode("utf-8", "replace")[:FILE_LIMIT]
        self._number += 1
        path = self._folder / f"{self._number}.txt"
        try:
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
            self._make_room(len(data))
            path.write_bytes(data)
            path.chmod(0o600)
        except OSError:
            path.unlink(missing_ok=True)
            return None
        self._kept.append((path, len(data)))
        self._size += len(data)
        return str(path)

    def _make_room(self, size: int) -> None:
        while self._kept and self._size + size > TOTAL_LIMIT:
            path, freed = self._kept.popleft()
            path.unlink(missing_ok=True)
            self._size -= freed
