"""What requests are answered with, and who asks."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import HTTPConnection

from contract.ids import sandbox_id, task_id
from contract.models import Caller, ShapeLimits, owner_name
from contract.network import Network
from poold.api.books import Books
from poold.api.seldom import Seldom
from poold.api.tickets import Refusals, Tickets, ticket_of
from poold.cgroups import Cgroups
from poold.drain import Departure
from poold.images import Images
from poold.lease.membership import Membership
from poold.ledger import Ledger
from poold.metrics import Metrics
from poold.pool import Pool
from poold.reconcile import Recovery
from poold.replica import Replica
from poold.sandboxes import Sandboxes
from poold.strain import Watch
from poold.tasks import Tasks


@dataclass(frozen=True)
class Facts:
    """What does not change while the daemon runs."""

    name: str  # of this host among the others
    address: str  # for gateways
    version: str
    engine: str
    accel: str
    started_ms: int
    slots: int
    limits: ShapeLimits
    default_image: str
    ledger_path: Path
    images_dir: Path
    store: str | None = None  # what it shares with other hosts
    cluster: str | None = None  # those hosts
    durability: str = "local"


@dataclass(frozen=True)
class Services:
    sandboxes: Sandboxes
    pool: Pool
    ledger: Ledger
    images: Images
    metrics: Metrics
    cgroups: Cgroups | None
    pressure: Watch
    recovery: Recovery
    facts: Facts
    tickets: Tickets
    refusals: Refusals
    tasks: Tasks
    membership: Membership = field(default_factory=Membership)
    full_books: Seldom = field(default_factory=Seldom)  # by owner: reservations that were refused
    departure: Departure | None = None  # the drain of this host, where it may have one
    books: Books = field(default_factory=lambda: Books(Membership()))
    replica: Replica | None = None  # of the ledger, where there is a store


def services(connection: HTTPConnection) -> Services:
    found: Services = connection.app.state.services
    return found


def caller_of(connection: HTTPConnection) -> Caller:
    """Who asks: whom the ticket names. The operator, who needs none, may say for whom."""
    state: dict[str, Any] = connection.scope["state"]
    ticket = ticket_of(connection)
    owner = owner_name(connection.headers.get("warren-owner")) if ticket is None else ticket.owner
    network = None if ticket is None or ticket.network is None else Network.decode(ticket.network)
    return Caller(owner, state.get("request"), network)


def asked_id(connection: HTTPConnection) -> str:
    return sandbox_id(connection.path_params["sandbox_id"])


def asked_task(connection: HTTPConnection) -> str:
    return task_id(connection.path_params["task_id"])
