"""Workspaces for asyncio: as `workspaces`, method for method."""

from pathlib import Path
from typing import IO

from warren import workspace_calls as calls
from warren.flows import Progress
from warren.lines import AsyncLine
from warren.listings import AsyncListing
from warren.models import Transfer
from warren.workspace_models import Version, WorkspaceDiff, WorkspaceInfo, newest


class AsyncWorkspaces:
    """What your sandboxes have saved. A new one is made by a sandbox that is created with its name."""

    def __init__(self, line: AsyncLine) -> None:
        self._line = line

    async def get(self, name: str) -> "AsyncWorkspace":
        return AsyncWorkspace(self._line, await self._line.send(calls.get(name)))

    def list(self) -> "AsyncListing[WorkspaceInfo, AsyncWorkspace]":
        """For `async for`."""
        return AsyncListing(
            lambda after: self._line.send(calls.listed(after)), lambda info: AsyncWorkspace(self._line, info)
        )


class AsyncWorkspace:
    """A workspace. `info` is what was told of it last."""

    def __init__(self, line: AsyncLine, info: WorkspaceInfo) -> None:
        self._line = line
        self.info = info

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def version(self) -> int:
        return self.info.version

    def __repr__(self) -> str:
        return f"<AsyncWorkspace {self.name} version {self.version}>"

    async def refresh(self) -> WorkspaceInfo:
        self.info = await self._line.send(calls.get(self.name))
        return self.info

    def versions(self) -> "AsyncListing[Version, Version]":
        """For `async for`."""
        return AsyncListing(lambda before: self._line.send(calls.versions(self.name, before)), lambda version: version)

    async def diff(
        self, from_version: int | None = None, to_version: int | None = None, *, path: str | None = None
    ) -> WorkspaceDiff:
        return await self._line.send(calls.diff(self.name, from_version, to_version, path))

    async def download(
        self, target: str | Path | IO[bytes], version: int | None = None, *, progress: Progress | None = None
    ) -> Transfer:
        call = calls.archive(self.name, (await self.refresh()).version if version is None else version)
        return await self._line.download(call, target, progress, None)

    async def restore(self, version: int) -> Version:
        restored = await self._line.send(calls.restore(self.name, version))
        self.info = newest(self.name, restored)
        return restored

    async def delete(self) -> int:
        return await self._line.send(calls.delete(self.name))
