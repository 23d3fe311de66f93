"""Outputs of tools that are too long for an event: whole, as files that only the superuser reads, oldest gone first."""

import os
from collections import deque
from pathlib import Path

from warren_guest.paths import make_own_folder

FILE_LIMIT = 8 << 20
TOTAL_LIMIT = 256 << 20
# One that was there before, of a guest that ended, is replaced; a link is never followed.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


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
            make_own_folder(str(self._folder), 0o700)
            self._make_room(len(data))
            with os.fdopen(os.open(path, _NEW, 0o600), "wb") as file:
                file.write(data)
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
