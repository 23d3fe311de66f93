"""What can be wrong with an archive of a guest."""

from contract.errors import CallerError, FaultError


class BadArchive(FaultError):
    """What a guest sent as its files is no archive that could be kept. It costs that archive only."""

    status = 502
    code = "bad_archive"


class ArchiveTooLarge(CallerError):
    """The files are more than what this host keeps."""

    status = 413
    code = "archive_too_large"
