"""Control groups: what is started in one stays in it, and so does all that it starts, whatever it does to hide.

Only the superuser can leave one, and no program in a run gains rights. Nothing here limits anything.
"""

import contextlib
import os
from dataclasses import dataclass

ROOT = "/sys/fs/cgroup"


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
        with contextlib.suppress(OSError):  # the superuser of the machine has taken it away
            fd = os.open(f"{self.path}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, b"1")
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
