"""What can go wrong, as a tree: the caller's fault, no room now, something broken, or nobody there.

Programs rely on the class and on `code`; the message is for people.
"""

from collections.abc import Mapping
from typing import Any


class WarrenError(Exception):
    """Anything that this package raises by itself."""

    code = "error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        details: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.status = status  # of the reply, if there was one
        self.details = dict(details or {})
        self.request_id = request_id  # what to name when you ask the operator

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.status is not None else self.message


class ConfigError(WarrenError):
    """There is no usable address or key."""

    code = "config"


class Unreachable(WarrenError):
    """The gateway cannot be reached, or did not answer in time. Whether it did what was asked is not known."""

    code = "unreachable"


class StreamBroken(Unreachable):
    """A stream ended before it said that it ends."""

    code = "stream_broken"


class ProtocolError(WarrenError):
    """What answers there does not speak as Warren does."""

    code = "not_warren"


class CallerError(WarrenError):
    """The request cannot be served as it is; the same request will fail again."""


class BadKey(CallerError):
    """There is no key, or it is wrong, revoked or expired."""


class Forbidden(CallerError):
    """The key is good, and not for this."""


class NotFound(CallerError):
    """There is no such thing, or it belongs to somebody else."""


class DeadlinePassed(CallerError):
    """The command took longer than its `timeout_sec` and was killed."""


class WrongState(CallerError):
    """Not possible in the state that it is in. Nothing was changed."""


class CapacityError(WarrenError):
    """The request is fine, and there is no room for it now."""

    @property
    def retry_after_s(self) -> float | None:
        value = self.details.get("retry_after_s")
        return float(value) if isinstance(value, int | float) else None


class RateLimited(CapacityError):
    """Too many requests in too short a time."""


class PoolExhausted(CapacityError):
    """You have all that your pools allow. `details` has `used`, `allowed` and `asked`."""


class WorkspaceUnsaved(CapacityError):
    """A sandbox has not ended, because its workspace could not be saved. It ends as soon as it can be."""


class FaultError(WarrenError):
    """Something at the other side is broken."""


class Corrupted(WarrenError):
    """What arrived is not what was sent."""

    code = "corrupted"


BY_CODE: Mapping[str, type[WarrenError]] = {
    "pool_exhausted": PoolExhausted,
    "deadline_passed": DeadlinePassed,
    "workspace_unsaved": WorkspaceUnsaved,
}
BY_STATUS: Mapping[int, type[WarrenError]] = {
    401: BadKey,
    403: Forbidden,
    404: NotFound,
    408: DeadlinePassed,
    409: WrongState,
    429: RateLimited,
    503: CapacityError,
}


def error_of(status: int, code: str, message: str, details: Mapping[str, Any], request_id: str | None) -> WarrenError:
    """The error that a refusal means."""
    by_branch = CallerError if status < 500 else FaultError
    kind = BY_CODE.get(code) or BY_STATUS.get(status, by_branch)
    return kind(message, code=code, status=status, details=details, request_id=request_id)
