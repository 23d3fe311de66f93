"""What a drain is asked for, and what it works with."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from contract.errors import CallerError
from poold.files import PRIVATE, put, sync
from poold.lease.membership import Membership
from poold.ledger import Ledger
from poold.metrics import Metrics
from poold.pool import Pool
from poold.sandboxes import Sandboxes, Sources
from poold.store import Store
from poold.tasks import Tasks

USUAL_S = 600
BY_OPERATOR = "the operator asked for it"


class CannotDrain(CallerError):
    """Nothing was done: not everything could be moved, and the message says what can be done about it."""

    status = 409
    code = "cannot_drain"


@dataclass(frozen=True)
class Asked:
    """`is_forced`: what cannot be moved is given up. `is_urgent`: the host goes away, whoever may carry it on."""

    timeout_s: float = USUAL_S
    is_forced: bool = False
    is_urgent: bool = False
    why: str = BY_OPERATOR


class Drained:
    """A file beside the ledger: this host was emptied, and takes nothing until it is undrained.

    The ledger cannot know it: it is another host's by then.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "drained"

    def __bool__(self) -> bool:
        return self._path.exists()

    def set(self) -> None:
        """Blocks."""
        put(self._path, b"", PRIVATE)

    def clear(self) -> None:
        """Blocks."""
        self._path.unlink(missing_ok=True)
        sync(self._path.parent)


@dataclass(frozen=True)
class Means:
    """What there is of this host."""

    name: str
    ledger: Ledger
    sandboxes: Sandboxes
    tasks: Tasks
    pool: Pool
    metrics: Metrics
    sources: Sources
    drained: Drained
    membership: Membership
    store: Store | None = None  # that hosts share
    cover: Callable[[], Awaitable[None]] | None = None  # all that is committed is in the ledger's replica
