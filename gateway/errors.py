"""What can go wrong between a client and a host, beside what the contract knows."""

from typing import Any

from contract.errors import CallerError, CapacityError, FaultError, NotFound, WarrenError
from contract.ids import TASK


class ConfigError(FaultError):
    """The environment asks for what cannot be. Names the variable and the value."""


class HostUnreachable(CapacityError):
    """The host could not be reached, or broke off before it answered. Whether it did what was asked is not known."""

    status = 503
    code = "host_unreachable"

    def __init__(self, message: str, *, sent: bool = True, retry_after_s: int = 1) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.sent = sent  # the host may have heard the request


class RegistryUnreachable(CapacityError):
    """The registry could not be read or written. Whether what was to be written is there is not known."""

    status = 503
    code = "registry_unreachable"

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after_s=1)


class HostBroken(FaultError):
    """The host answered with what is not HTTP, or with more than is allowed."""

    status = 502
    code = "bad_host_reply"


class HostSaid(WarrenError):
    """What a host refused with, passed on as it is."""

    def __init__(self, status: int, value: Any) -> None:
        error = value.get("error") if isinstance(value, dict) else None
        told = error if isinstance(error, dict) else {"message": f"the host answered {status}"}
        details = {str(name): item for name, item in told.items() if name not in ("code", "message")}
        super().__init__(str(told.get("message", "")), **details)
        self.status = status
        self.code = str(told.get("code", HostBroken.code))


class BadFraming(CallerError):
    """Two could read the request in two ways. It is not passed on."""

    code = "bad_framing"


class HeadTooLarge(CallerError):
    """More of a head than anybody needs."""

    status = 431
    code = "head_too_large"

    def __init__(self, limit: int, headers: int) -> None:
        super().__init__(f"the head of a request must have at most {limit} bytes and {headers} headers", limit=limit)


class SlowHead(CallerError):
    """The head of a request did not come to its end."""

    status = 408
    code = "slow_head"


class BadBody(CallerError):
    """The client's body broke off, or is not framed as HTTP says. Nothing was passed on behind that."""

    code = "bad_body"


class SlowBody(CallerError):
    """The client sent nothing of its body for too long."""

    status = 408
    code = "slow_body"


class HostSlow(HostUnreachable):
    """The host took the request and did not begin to answer in time. It may still do what was asked."""

    status = 504
    code = "host_slow"


def not_found(either: str) -> NotFound:
    """There is no sandbox, or no task, of this id."""
    kind = "task" if TASK.fullmatch(either) else "sandbox"
    return NotFound(f"no {kind} {either}", **{kind: either})


def refuses_tickets(host: str) -> HostUnreachable:
    """What a host's 401 is: no fault of the client's. Nothing was done, and another host may do it."""
    return HostUnreachable(f"{host} refuses this gateway's tickets: are their clocks right?", sent=False)
