"""What the gateway tells of workspaces and templates, as plain values. As in `models`: what is not known is skipped."""

from dataclasses import dataclass, field, replace
from typing import Any

from warren.models import HeldWorkspace, read


@dataclass(frozen=True)
class WorkspaceInfo:
    """A workspace as it was when it was asked for: its newest version. Times are Unix milliseconds."""

    name: str
    version: int
    size_bytes: int = 0  # of its files
    files: int = 0  # all but folders
    updated_ms: int = 0
    problem: str | None = None  # why its newest version cannot be read: then only the number is known of it


@dataclass(frozen=True)
class Version:
    """One version of a workspace. It never changes."""

    version: int
    parent: int | None = None  # what it was made from
    created_ms: int = 0
    size_bytes: int = 0
    files: int = 0
    sandbox: str | None = None  # that saved it
    task: str | None = None  # whose sandbox that was
    restored_from: int | None = None  # it has the files of this one
    template: str | None = None  # its first files are of this one
    problem: str | None = None  # why it cannot be read


@dataclass(frozen=True)
class Change:
    """A file that is another in the later version. A folder has no size."""

    path: str
    change: str  # "added", "removed" or "changed"
    size_before: int | None = None
    size_after: int | None = None


@dataclass(frozen=True)
class WorkspaceDiff:
    """What is different between two versions."""

    from_version: int | None  # None: nothing was there before
    to_version: int
    changes: tuple[Change, ...] = ()
    is_truncated: bool = False  # there are more changes than these
    text: str | None = None  # of one file that was asked for: a unified diff, if it is text


@dataclass(frozen=True)
class Saved:
    """What came of a save."""

    version: int | None  # that has the files as they are; None: there are none, and never were
    is_new: bool = False  # False: nothing has changed since that version
    workspace: HeldWorkspace = field(default_factory=HeldWorkspace)


@dataclass(frozen=True)
class Template:
    """What a workspace may begin with."""

    name: str
    size_bytes: int = 0
    files: int = 0
    updated_ms: int = 0
    is_shipped: bool = False  # it came with Warren; others are the operator's


def newest(name: str, version: Version) -> WorkspaceInfo:
    """A workspace whose newest version this is."""
    return WorkspaceInfo(name, version.version, version.size_bytes, version.files, version.created_ms)


def read_saved(value: Any) -> Saved:
    saved = read(Saved, value)
    return replace(saved, workspace=read(HeldWorkspace, saved.workspace))


def read_diff(value: Any) -> WorkspaceDiff:
    """As the gateway has it: `from` and `to`, which are no names in Python."""
    told = dict(value) if isinstance(value, dict) else {}
    names = {"from": "from_version", "to": "to_version", "truncated": "is_truncated"}
    diff = read(WorkspaceDiff, {names.get(name, name): item for name, item in told.items()})
    return replace(diff, changes=tuple(read(Change, each) for each in diff.changes))
