"""What can go wrong with what a task leaves behind, as branches of contract's tree."""

from contract.errors import CallerError, NotFound


class ArtifactTooLarge(CallerError):
    status = 413
    code = "artifact_too_large"


class NoArtifact(NotFound):
    """The task has none of that name."""


class BadRange(CallerError):
    """The part that was asked for is not in the file. `bytes` says how long that is."""

    status = 416
    code = "bad_range"
