"""What the operator says of workspaces."""

from dataclasses import dataclass
from pathlib import Path

from contract.settings import Settings

MB = 1 << 20


@dataclass(frozen=True)
class WorkspacesConfig:
    folder: Path | None = None  # where they are, if not in the store that hosts share
    bytes: int = 16_384 * MB  # of one, as a tar stream
    files: int = 200_000  # of one
    save_s: int = 300  # how often a running sandbox's is saved; 0: only when it ends or is paused
    versions: int = 20  # the newest of each, which are kept however old they are
    days: int = 7  # and all that are not older

    @classmethod
    def read(cls, settings: Settings) -> "WorkspacesConfig":
        return cls(
            folder=settings.path("POOLD_WORKSPACES"),
            bytes=settings.integer("POOLD_WORKSPACE_MB", 16_384, 1, 1 << 24) * MB,
            files=settings.integer("POOLD_WORKSPACE_FILES", 200_000, 1, 500_000),
            save_s=settings.integer("POOLD_WORKSPACE_SAVE_SEC", 300, 0, 7 * 24 * 3600),
            versions=settings.integer("POOLD_WORKSPACE_VERSIONS", 20, 1, 10_000),
            days=settings.integer("POOLD_WORKSPACE_DAYS", 7, 0, 3650),
        )
