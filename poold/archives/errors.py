"""What can go wrong with what a guest sends of its files, as branches of contract's tree."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contract.errors import CallerError, CapacityError, FaultError
from poold.errors import HostFault


class BadArchive(FaultError):
    """What a guest sent as its workspace is no archive that could be kept. It costs that archive only."""

    status = 502
    code = "bad_archive"


class ArchiveTooLarge(CallerError):
    """The workspace is larger than what this host keeps of one."""

    status = 413
    code = "archive_too_large"


class StoreFull(CapacityError):
    """The disk of what is kept has no room left. Nothing of what was being written remains."""

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
