"""What a task left behind: its archive, opened as anybody would who was given one."""

import contextlib
import hashlib
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.gitserver import git
from tests.tasks.client import Task


@dataclass(frozen=True)
class Archive:
    root: Path  # of what was in it
    members: tuple[tarfile.TarInfo, ...]
    packed: bytes

    @property
    def names(self) -> set[str]:
        return {member.name for member in self.members}

    def found(self, name: str) -> Path:
        """The only file of this name outside of `.git`."""
        (path,) = (path for path in self.root.rglob(name) if ".git" not in path.parts)
        return path

    @property
    def repository(self) -> Path:
        (folder,) = self.root.rglob(".git")
        return folder.parent

    def git(self, *arguments: str) -> str:
        return git(*arguments, cwd=self.repository)

    def subjects(self) -> list[str]:
        """Of all commits, the oldest first."""
        return self.git("log", "--reverse", "--format=%s").splitlines()


@contextlib.contextmanager
def opened(task: Task) -> Iterator[Archive]:
    """The archive of a task that has ended, unpacked during the block. It is what the task says that it is."""
    packed = task.get("/archive").body
    told = task.view["result"]["archive"]
    assert (len(packed), hashlib.sha256(packed).hexdigest()) == (told["bytes"], told["sha256"])
    with tempfile.TemporaryDirectory(prefix="warren-archive-") as name:
        root, plain = Path(name) / "root", Path(name) / "plain.tar"
        root.mkdir()
        with plain.open("wb") as file:
            subprocess.run(["zstd", "-dc"], input=packed, stdout=file, check=True)
        with tarfile.open(plain) as tar:
            members = tuple(tar)
        subprocess.run(["tar", "-C", root, "-xf", plain], check=True)
        yield Archive(root, members, packed)
