"""What a request needs, in one place: the parts of a gateway, and who asks."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request

from gateway.audit import Refusals
from gateway.auth import Auth, Caller
from gateway.background import Background
from gateway.config import Config
from gateway.creation import Creation
from gateway.hosts import Hosts
from gateway.metrics import Metrics
from gateway.passes import Passes
from gateway.quotas import Quotas
from gateway.registry import Registry
from gateway.tickets import Tickets
from gateway.upstream import Begun
from gateway.watching import Watch


@dataclass(frozen=True)
class Services:
    config: Config
    registry: Registry
    watch: Watch
    auth: Auth
    tickets: Tickets
    passes: Passes
    hosts: Hosts
    quotas: Quotas
    creation: Creation
    refusals: Refusals
    background: Background
    metrics: Metrics
    now_ms: Callable[[], int]
    entropy: Callable[[int], bytes]


CALL = "warren"  # in a scope


@dataclass(slots=True)
class Call:
    """One request on its way through the gateway."""

    services: Services
    request_id: str
    address: str  # of the client
    secret: str | None = field(repr=False)  # the key that it came with, whatever that is
    extra: list[tuple[bytes, bytes]]  # headers of the reply
    operation: str = "none"  # its name, once it is known
    sandbox: str | None = None
    caller: Caller | None = None  # once it is known
    begun: Begun | None = None
    began_s: float = field(default_factory=time.perf_counter)

    @property
    def who(self) -> Caller:
        """Who asks, in an operation that needs a key."""
        assert self.caller is not None  # noqa: S101 — the guard of the operation has seen to that
        return self.caller


def call_of(request: Request) -> Call:
    found: Call = request.scope[CALL]
    return found
