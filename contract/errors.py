"""The tree of errors that reach a caller, and the one shape in which they do.

The tree answers: is it the caller's fault (`CallerError`), should they come back or go elsewhere
(`CapacityError`), or is it broken (`FaultError`)? Every error has a code that programs can rely on,
a message that people can act on, and details that name the field and the value.
"""

from typing import Any

SHOWN_VALUE_CHARS = 80  # enough to recognise a value, too little to fill a log with it


class WarrenError(Exception):
    """An error with a code and an HTTP status. Raised only as one of its three branches."""

    status: int = 500
    code: str = "internal"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def body(self) -> dict[str, Any]:
        """The reply's JSON: `{"error": {"code", "message", …details}}`."""
        return {"error": {"code": self.code, "message": self.message, **self.details}}


class CallerError(WarrenError):
    """The request cannot be served as it is; the same request will fail again."""

    status = 400
    code = "bad_request"


class CapacityError(WarrenError):
    """The request is fine, and there is no room for it now. `retry_after_s` says when to come back."""

    status = 503
    code = "no_capacity"

    def __init__(self, message: str, *, retry_after_s: int = 5, **details: Any) -> None:
        super().__init__(message, retry_after_s=retry_after_s, **details)
        self.retry_after_s = retry_after_s


class FaultError(WarrenError):
    """Something of ours is broken; the caller did nothing wrong."""

    status = 500
    code = "internal"


class BadField(CallerError):
    """A field of the request has a value that is not allowed."""

    code = "bad_field"

    def __init__(self, field: str, value: object, problem: str) -> None:
        field = field if len(field) <= SHOWN_VALUE_CHARS else field[:SHOWN_VALUE_CHARS] + "…"
        super().__init__(f"{field}: {problem}, got {shown(value)}", field=field, value=shown(value))
        self.field, self.problem = field, problem

    def unshown(self) -> "BadField":
        """The same, of a field whose value may be a secret."""
        return BadField(self.field, "…", self.problem)


class NotFound(CallerError):
    status = 404
    code = "not_found"


class NotMine(NotFound):
    """This host has never had it. Another may."""

    code = "not_mine"


class NoBook(NotFound):
    """This host has no open book of the owner: whoever reserves has to bring the book here first."""

    code = "no_book"


class KeyReused(CallerError):
    """The idempotency key was used before, for another request."""

    status = 422
    code = "key_reused"


class WrongState(CallerError):
    """What was asked for is not possible in the state that the thing is in. Nothing was changed."""

    status = 409
    code = "wrong_state"


class PoolExhausted(CapacityError):
    """The owner has all that its pools allow. `used`, `allowed` and `asked` say how much of what."""

    status = 429
    code = "pool_exhausted"


class RateLimited(CapacityError):
    status = 429
    code = "rate_limited"


class TooLarge(CallerError):
    status = 413
    code = "body_too_large"


def shown(value: object) -> str:
    """`value` as it may stand in a message: short, on one line, printable."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return text if len(text) <= SHOWN_VALUE_CHARS else text[:SHOWN_VALUE_CHARS] + "…"
