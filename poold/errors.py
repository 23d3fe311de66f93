"""What can go wrong on a host, as branches of contract's tree. Foreign errors become these where we meet them."""

from contract.errors import CapacityError, FaultError, WarrenError


class ConfigError(Exception):
    """The environment or a file of ours asks for what cannot be; the message names the variable and the value."""


class HostFault(FaultError):
    """Something on this host failed: says what was being done, to what, and what helps."""

    code = "host_fault"

    def __init__(self, doing: str, subject: str, *, hint: str = "") -> None:
        super().__init__(f"{doing} {subject} failed" + (f": {hint}" if hint else ""), doing=doing, subject=subject)
        self.hint = hint


class EngineError(HostFault):
    code = "engine_failed"


class NetError(HostFault):
    code = "network_failed"


class LedgerError(HostFault):
    code = "ledger_failed"


class NoFreeSlot(CapacityError):
    """Every slot of this host is in use."""


class GuestError(FaultError):
    """A guest did not answer, or not in a way that makes sense. It costs its own sandbox only."""

    status = 502
    code = "guest_failed"


class MachineDied(FaultError):
    """The machine ended while something was under way in it."""

    status = 502
    code = "machine_died"


class GuestRefused(WarrenError):
    """The guest understood the request and said no; its status, code and message go to the caller as they are."""

    def __init__(self, status: int, code: str, message: str, **details: object) -> None:
        super().__init__(message, **details)
        self.status = status
        self.code = code


class HostPressure(CapacityError):
    """This host is short of something that all its machines need; those that run are left alone."""

    code = "host_pressure"
