"""Workspaces for threads: what sandboxes have saved of their files, version by version. `aio_workspaces` is the same
for asyncio.
"""

from pathlib import Path
from typing import IO

from warren import workspace_calls as calls
from warren.flows import Progress
from warren.lines import Line
from warren.listings import Listing
from warren.models import Transfer
from warren.workspace_models import Version, WorkspaceDiff, WorkspaceInfo, newest


class Workspaces:
    """What your sandboxes have saved. A new one is made by a sandbox that is created with its name."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def get(self, name: str) -> "Workspace":
        return Workspace(self._line, self._line.send(calls.get(name)))

    def list(self) -> "Listing[WorkspaceInfo, Workspace]":
        """All of yours, by name, page after page."""
        return Listing(lambda after: self._line.send(calls.listed(after)), lambda info: Workspace(self._line, info))


class Workspace:
    """A workspace. `info` is what was told of it last."""

    def __init__(self, line: Line, info: WorkspaceInfo) -> None:
        self._line = line
        self.info = info

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def version(self) -> int:
        """The newest one."""
        return self.info.version

    def __repr__(self) -> str:
        return f"<Workspace {self.name} version {self.version}>"

    def refresh(self) -> WorkspaceInfo:
        self.info = self._line.send(calls.get(self.name))
        return self.info

    def versions(self) -> "Listing[Version, Version]":
        """Its versions, newest first, page after page."""
        return Listing(lambda before: self._line.send(calls.versions(self.name, before)), lambda version: version)

    def diff(
        self, from_version: int | None = None, to_version: int | None = None, *, path: str | None = None
    ) -> WorkspaceDiff:
        """What is different. Without `to_version` it is the newest; without `from_version` what that was made from.

        With `path` only that file is told of, and what changed in it, if it is text.
        """
        return self._line.send(calls.diff(self.name, from_version, to_version, path))

    def download(
        self, target: str | Path | IO[bytes], version: int | None = None, *, progress: Progress | None = None
    ) -> Transfer:
        """Carry all files of a version here, else of the newest one: a tar in zstd, with one folder `workspace`.

        A file named `target` is there when all of it is, and not before.
        """
        call = calls.archive(self.name, self.refresh().version if version is None else version)
        return self._line.download(call, target, progress, None)

    def restore(self, version: int) -> Version:
        """Let the files of an earlier version be the newest one. Those in between stay, and so do sandboxes."""
        restored = self._line.send(calls.restore(self.name, version))
        self.info = newest(self.name, restored)
        return restored

    def delete(self) -> int:
        """Delete it with all its versions, and tell how many they were. A sandbox that has it saves it anew."""
        return self._line.send(calls.delete(self.name))
