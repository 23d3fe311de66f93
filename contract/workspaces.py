"""Workspaces and templates: what a sandbox is told to begin with, and what is told of what was saved. No I/O."""

import re
from dataclasses import asdict, dataclass
from typing import Any

from contract.errors import CallerError, CapacityError, NotFound

NAME = r"[a-z0-9][a-z0-9._-]{0,63}"  # of a workspace, and of a template
MAX_NAME_CHARS = 64
MAX_VERSION = 10**12


class WorkspaceUnsaved(CapacityError):
    """A sandbox does not end, because what is in its workspace could not be saved. It is tried again."""

    code = "workspace_unsaved"


class WorkspaceTooLarge(CallerError):
    """The workspace has more bytes or files than this host keeps of one."""

    status = 413
    code = "workspace_too_large"


@dataclass(frozen=True)
class Workspace:
    """What a sandbox's /workspace was made from, and where it is saved. Part of a sandbox."""

    name: str | None  # None: it is not saved
    template: str | None = None  # it was made from this one
    from_version: int | None = None  # or from this version of its own
    saved_version: int | None = None  # the last one that this sandbox saved
    mark: int | None = None  # what its guest calls that save
    is_unsaved: bool = False  # it sleeps, and could not be saved before
    task: str | None = None  # that it works for

    def view(self) -> dict[str, Any]:
        names = ("name", "from_version", "saved_version", "template")
        return {name: getattr(self, name) for name in names}

    def encode(self) -> dict[str, Any]:
        """As the ledger has it."""
        return asdict(self)

    @property
    def base(self) -> int | None:
        """The version that its files are, but for what was changed since."""
        return self.from_version if self.saved_version is None else self.saved_version

    @property
    def last(self) -> str:
        """What was saved of it, for people."""
        if self.name is None:
            return "its files were not to be saved"
        if self.saved_version is None:
            return f"its workspace {self.name} was not saved by it"
        return f"its workspace {self.name} was last saved as version {self.saved_version}"


@dataclass(frozen=True)
class Version:
    """One version of a workspace, as it is told."""

    version: int
    parent: int | None  # what it was made from
    created_ms: int
    size_bytes: int  # of its files
    files: int  # all but folders
    sandbox: str | None  # that saved it
    task: str | None
    restored_from: int | None
    template: str | None  # its first files are of this one
    problem: str | None = None  # why it cannot be read: then nothing else is known of it


@dataclass(frozen=True)
class Summary:
    """A workspace, as it is listed: its newest version."""

    name: str
    version: int
    size_bytes: int
    files: int
    updated_ms: int
    problem: str | None = None  # why its newest version cannot be read


@dataclass(frozen=True)
class Change:
    """What is different between two versions. A folder has no size."""

    path: str
    change: str  # added, removed or changed
    size_before: int | None
    size_after: int | None


@dataclass(frozen=True)
class Saved:
    """What came of a save."""

    workspace: dict[str, Any]  # as in the sandbox
    version: int | None  # that has the files as they are; None: there are none, and never were
    is_new: bool


@dataclass(frozen=True)
class Template:
    """A template, as it is listed."""

    name: str
    size_bytes: int
    files: int
    updated_ms: int
    is_shipped: bool  # it came with Warren; others are the operator's


def workspace_name(name: str) -> str:
    """`name`, if a workspace can have it; else there is none."""
    if not re.fullmatch(NAME, name):
        raise no_workspace(name)
    return name


def no_workspace(name: str) -> NotFound:
    return NotFound(f"no workspace {name!r}", workspace=name[:MAX_NAME_CHARS])


def no_version(name: str, version: int) -> NotFound:
    return NotFound(f"workspace {name!r} has no version {version}", workspace=name, version=version)
