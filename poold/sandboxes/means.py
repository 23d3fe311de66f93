"""What operations on sandboxes work with."""

import asyncio
import base64
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from contract.egress import Open
from contract.errors import CapacityError, FaultError
from contract.models import Caller, Rules, Sandbox
from contract.states import Event
from poold.hibernate import Depot
from poold.images import Images
from poold.ledger import Ledger, sandboxes
from poold.link import Guest
from poold.metrics import Histogram, Metrics
from poold.pool import Place, Pool, Rule
from poold.sandboxes.lifecycle import Activity
from poold.sandboxes.network import HostNetwork
from poold.workspaces import Shelf

ENTROPY_BYTES = 64  # twice what the kernel's generator can hold


@dataclass(frozen=True)
class Sources:
    """Clock and randomness, read where the program begins."""

    now_ms: Callable[[], int]
    unix_ns: Callable[[], int]
    entropy: Callable[[int], bytes]


@dataclass(frozen=True)
class Defaults:
    """What a sandbox is when its request does not say."""

    image: str
    rules: Rules


@dataclass(frozen=True)
class Means:
    """What every operation needs."""

    ledger: Ledger
    pool: Pool
    images: Images
    sources: Sources
    metrics: Metrics
    network: HostNetwork = field(default_factory=HostNetwork)
    depot: Depot | None = None  # where machines hibernate
    shelf: Shelf | None = None  # where workspaces are

    def rule_of(self, sandbox: Sandbox) -> Rule:
        """What the proxy of the sandbox's machine is told."""
        return sandbox.id, self.network.policy(sandbox.network, sandbox.within)

    async def move(
        self,
        sandbox_id: str,
        event: Event,
        caller: Caller,
        *,
        durable: bool = True,
        **changes: Any,
    ) -> Sandbox:
        """Write a change of state down, with its event and its audit row. Raises `WrongState` and changes nothing."""
        now_ms = self.sources.now_ms()
        change = partial(sandboxes.move, sandbox_id=sandbox_id, event=event, now_ms=now_ms, request=caller.request)
        return await self.ledger.write(lambda db: change(db, **changes), durable=durable)

    @contextlib.contextmanager
    def claiming(self) -> Iterator[None]:
        """A claim during the block: how long it took is measured, or how it failed is counted."""
        began = time.monotonic()
        try:
            yield
        except CapacityError:
            self.metrics.claims_total.add(outcome="refused")
            raise
        except FaultError:
            self.metrics.claims_total.add(outcome="failed")
            raise
        self.metrics.claim_seconds.observe(time.monotonic() - began)

    @contextlib.contextmanager
    def timing(self, seconds: Histogram) -> Iterator[None]:
        """Measure how long the block takes, if it succeeds."""
        began = time.monotonic()
        yield
        seconds.observe(time.monotonic() - began)

    def identity(self, sandbox_id: str, generation: int, **more: Any) -> dict[str, Any]:
        """What a guest is told whenever it begins to run. The clock is read last: it is what grows old."""
        return {
            "generation": generation,
            "id": sandbox_id,
            "entropy": base64.b64encode(self.sources.entropy(ENTROPY_BYTES)).decode(),
            **more,
            "unix_ns": self.sources.unix_ns(),
        }


@dataclass(eq=False)
class Live:
    """A running sandbox's machine, who uses it, and who listens to it."""

    sandbox: Sandbox
    place: Place
    guest: Guest
    active_ms: int
    users: int = 0  # requests under way and open terminals
    rests_until_ms: int = 0  # after a pause that failed: not before is another one tried by itself
    listening: "asyncio.Task[None] | None" = None
    keeping: "asyncio.Task[None] | None" = None  # who saves its workspace now and then
    saving: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def activity(self) -> Activity:
        return Activity(self.active_ms, self.users > 0)

    def stop_listening(self) -> None:
        for task in (self.listening, self.keeping):
            if task is not None:
                task.cancel()
        self.listening = self.keeping = None

    async def hear(self, now_ms: int) -> None:
        """Ask the guest for how long it has been quiet: only it knows of output that nobody reads."""
        quiet_ms = (await self.guest.call("GET", "/health")).get("quiet_ms")
        if isinstance(quiet_ms, int) and not isinstance(quiet_ms, bool) and quiet_ms >= 0:
            self.active_ms = max(self.active_ms, now_ms - quiet_ms)

    def connections(self) -> list[Open]:
        """Those that are under way."""
        proxy = self.place.proxy
        return [] if proxy is None else [each for each in proxy.opens.values() if each.sandbox == self.sandbox.id]
