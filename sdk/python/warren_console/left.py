"""The shells that were left running, so that `attach` finds them again: a file a sandbox, with a number a line.

It is a convenience: where it cannot be written, `--pid` does the same.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

KEPT_S = 31 * 24 * 3600  # no sandbox lives longer


class Left:
    """The shells of one sandbox that this person left, the last one last."""

    def __init__(self, program: str, sandbox: str, environ: Mapping[str, str]) -> None:
        state = environ.get("XDG_STATE_HOME") or f"{environ.get('HOME') or '/root'}/.local/state"
        self._folder = Path(state) / program / "left"
        self._file = self._folder / sandbox

    def take(self) -> int | None:
        """The shell that was left last, which is then no longer left."""
        pids = self._read()
        if not pids:
            return None
        self._write(pids[:-1])
        return pids[-1]

    def put(self, pid: int) -> None:
        self._write([*(other for other in self._read() if other != pid), pid])

    def _read(self) -> list[int]:
        try:
            return [int(line) for line in self._file.read_text().split()]
        except (OSError, ValueError):
            return []

    def _write(self, pids: list[int]) -> None:
        with contextlib.suppress(OSError):
            if not pids:
                self._file.unlink(missing_ok=True)
                return
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = self._folder / f".{self._file.name}.{os.getpid()}"
            new.write_text("".join(f"{pid}\n" for pid in pids))
            new.rename(self._file)
            self._forget_old()

    def _forget_old(self) -> None:
        for file in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if file.stat().st_mtime < time.time() - KEPT_S:
                    file.unlink()
