"""What can go wrong with what a task leaves behind, as branches of contract's tree."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contract.errors import CallerError, CapacityError, NotFound
from poold.errors import HostFault


class ArtifactTooLarge(CallerError):
    status = 413
    code = "artifact_too_large"


class NoArtifact(NotFound):
    """The task has none of that name."""


class BadRange(CallerError):
    """The part that was asked for is not in the file. `bytes` says how long that is."""

    status = 416
    code = "bad_range"


class StoreFull(CapacityError):
    """The disk of what tasks leave behind has no room left. Nothing of what was being written remains."""

    code = "store_full"

    def __init__(self, path: Path) -> None:
        super().__init__(f"the disk of {path} is full: make room there, no restart is needed", retry_after_s=30)


@contextmanager
def translated(doing: str, path: Path) -> Iterator[None]:
    """Raise `StoreFull` or `HostFault` for an `OSError` of the block."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(path.parent) from error
        raise HostFault(doing, str(path), hint=error.strerror or str(error)) from error
