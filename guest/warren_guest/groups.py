"""Control groups: what is started in one stays in it, and so does all that it starts, whatever it does to hide.

Only the superuser can leave one, and no program in a run gains rights. Nothing here limits anything.
"""

import contextlib
import os
import time
from dataclasses import dataclass

ROOT = "/sys/fs/cgroup"
_FREEZE_S = 2.0
_LOOK_S = 0.001


@dataclass(frozen=True, slots=True)
class Group:
    """One group, by its folder."""

    path: str

    @property
    def door(self) -> str:
        """The file through which a process enters."""
        return f"{self.path}/cgroup.procs"

    def kill(self) -> None:
        """Kill all of it at once: nothing in it can start something meanwhile."""
        self._write("cgroup.kill", b"1")

    def freeze(self) -> None:
        """Returns when all of it stands still, or after a while: who waits for a disk is not waited for."""
        self._write("cgroup.freeze", b"1")
        give_up = time.monotonic() + _FREEZE_S
        while not self._is_frozen() and time.monotonic() < give_up:
            time.sleep(_LOOK_S)

    def thaw(self) -> None:
        self._write("cgroup.freeze", b"0")

    def _is_frozen(self) -> bool:
        try:
            with open(f"{self.path}/cgroup.events", "rb") as file:  # noqa: PTH123
                return b"frozen 1" in file.read()
        except OSError:
            return True  # there is none of it

    def _write(self, name: str, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the superuser of the machine has taken it away
            fd = os.open(f"{self.path}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)


class Groups:
    """Makes groups below a folder of the kernel's. May block for a moment."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def make(self, name: str) -> Group:
        """A new group. Those of the past in which nobody lives any more are removed."""
        for old in os.scandir(self._folder):
            if old.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):  # somebody lives there
                    os.rmdir(old.path)  # noqa: PTH106
        group = Group(f"{self._folder}/{name}")
        os.mkdir(group.path, 0o755)  # noqa: PTH102
        return group


def open_groups() -> Groups | None:
    """Groups of this machine, or None if its kernel has none that can be killed as a whole."""
    folder = f"{ROOT}/warren"
    try:
        os.makedirs(folder, 0o755, exist_ok=True)  # noqa: PTH103
    except OSError:
        return None
    return Groups(folder) if os.path.exists(f"{folder}/cgroup.kill") else None  # noqa: PTH110
