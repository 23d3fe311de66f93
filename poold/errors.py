"""What can go wrong on a host, as branches of contract's tree. Foreign errors become these where we meet them."""

from pathlib import Path

from contract.errors import CallerError, CapacityError, FaultError, WarrenError


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


class LedgerFull(CapacityError):
    """The disk that the ledger is on has no room left. The write changed nothing; it works again when there is room."""

    code = "ledger_full"

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"the disk of {path} is full, so nothing can be written down: make room there, no restart is needed",
            retry_after_s=30,
            path=str(path),
        )


class Exists(CallerError):
    """A sandbox of this id was created before. It is as it was."""

    status = 409
    code = "exists"


class NoFreeSlot(CapacityError):
    """Every slot of this host is in use."""


class SandboxPaused(CallerError):
    """The sandbox was paused while something was under way in it. What ran goes on when it is resumed."""

    status = 409
    code = "sandbox_paused"


class SandboxStopped(CallerError):
    """The sandbox was stopped while something was under way in it."""

    status = 409
    code = "sandbox_stopped"


class Draining(CapacityError):
    """The operator empties this host: it takes nothing new."""

    code = "draining"


class GuestError(FaultError):
    """A guest did not answer, or not in a way that makes sense. It costs its own sandbox only."""

    status = 502
    code = "guest_failed"


class GuestTooOld(FaultError):
    """The guest in this sandbox is older than what was asked of it."""

    status = 501
    code = "guest_too_old"


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


class Fenced(CapacityError):
    """This host does not hold its lease any more: others may carry on what it had, so it does nothing."""

    code = "fenced"


class NoRoomToQueue(CapacityError):
    """As many tasks wait for room on this host as may."""


class NotWaiting(CallerError):
    """Nothing waits for such an answer."""

    status = 409
    code = "not_waiting"


class NotPossible(CallerError):
    """The task's agent cannot do this."""

    status = 409
    code = "not_possible"
