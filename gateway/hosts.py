"""The hosts as this gateway sees them: their records, whether they live, and which of them has an id.

All of it is a cache. Records come from the registry and from probes, places of ids from asking; a gateway that starts
anew finds everything again.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from contract.errors import WarrenError
from contract.hosts import Host
from contract.ids import home_of
from contract.keys import Pools
from contract.models import CreateSandbox, Shape
from contract.network import Network
from contract.ring import ranked
from contract.tickets import Access, BadTicket
from gateway.errors import HostBroken, HostSaid, HostUnreachable, not_found, refuses_tickets
from gateway.liveness import Health, Pulse, health
from gateway.placement import Offer, Taken, offers
from gateway.tickets import Tickets
from gateway.upstream import MAX_JSON_BYTES, Upstream

log = logging.getLogger("gateway.hosts")

GATEWAY = "gateway"  # who asks when a gateway asks for itself
ASK_S = 5.0
FIND_S = 1.0  # for each of the two rounds in which an id is looked for
MAX_PLACES = 100_000  # ids whose host is remembered
MISSED_S = 0.5  # what was on a host that is dead is looked for elsewhere so often, and no more: others may be many

Pairs = list[tuple[bytes, bytes]]
Dial = Callable[[str, str], Upstream]  # to the host of that name, at that address


@dataclass
class Seen:
    """One host: what it says of itself, what we know of it, and the way there."""

    record: Host
    upstream: Upstream
    pulse: Pulse = field(default_factory=Pulse)
    taken: Taken = field(default_factory=Taken)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    value: Any
    headers: Pairs

    def or_raise(self) -> Any:
        """The value of a good answer; a refusal is raised as the host said it."""
        if self.status >= 400:
            raise HostSaid(self.status, self.value)
        return self.value


class Hosts:
    """Used from one loop only. `generation` grows when a host comes (back) to life."""

    def __init__(self, tickets: Tickets, dial: Dial, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._tickets = tickets
        self._dial = dial
        self._clock_s = clock_s
        self._seen: dict[str, Seen] = {}
        self._weights: dict[str, float] = {}
        self._places: OrderedDict[str, str] = OrderedDict()
        self._missed: OrderedDict[str, float] = OrderedDict()  # when an id was last not where it was looked for
        self._closing: set[asyncio.Task[None]] = set()
        self.generation = 0

    # What is known

    def know(self, records: Mapping[str, Host], *, beats: bool = True) -> None:
        """From now on these are all hosts. With `beats` the records are the hosts' own, and say that they live."""
        for name in [name for name in self._seen if name not in records]:
            self._hang_up(self._seen.pop(name).upstream)
        now_s = self._clock_s()
        for name, record in records.items():
            seen = self._known(name, record)
            if beats and record.beat != seen.pulse.beat:
                self._heard(seen, lambda pulse, beat=record.beat: pulse.saw_beat(beat, now_s))  # type: ignore[misc]
                self._update(seen, record)
        self._weights = {name: seen.record.weight for name, seen in self._seen.items()}

    def heard(self, name: str, record: Host) -> None:
        """A probe was answered with this record."""
        seen = self._seen.get(name)
        if seen is not None:
            self._heard(seen, lambda pulse: pulse.answered_probe(self._clock_s()))
            self._update(seen, replace(record, address=seen.record.address))
            self._weights[name] = seen.record.weight

    def failed(self, name: str) -> None:
        """The host could not be reached."""
        seen = self._seen.get(name)
        if seen is not None:
            was = seen.pulse.is_alive(self._clock_s())
            seen.pulse.failed()
            if was and not seen.pulse.is_alive(self._clock_s()):
                log.warning("a host is dead", extra={"host": name})

    def _heard(self, seen: Seen, change: Callable[[Pulse], None]) -> None:
        was = seen.pulse.is_alive(self._clock_s())
        change(seen.pulse)
        if not was and seen.pulse.is_alive(self._clock_s()):
            self.generation += 1
            log.info("a host lives", extra={"host": seen.record.name})

    def _known(self, name: str, record: Host) -> Seen:
        seen = self._seen.get(name)
        if seen is None:
            seen = self._seen[name] = Seen(record, self._dial(name, record.address))
        elif seen.record.address != record.address:
            self._hang_up(seen.upstream)
            seen.upstream = self._dial(name, record.address)
            seen.record = replace(seen.record, address=record.address)
        return seen

    def _update(self, seen: Seen, record: Host) -> None:
        seen.record = record
        seen.taken = Taken()

    def _hang_up(self, upstream: Upstream) -> None:
        task = asyncio.ensure_future(upstream.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for seen in self._seen.values():
            self._hang_up(seen.upstream)
        self._seen = {}
        if self._closing:
            await asyncio.wait(self._closing)

    # What follows from it

    def weights(self) -> Mapping[str, float]:
        """All hosts, dead ones too: the ring."""
        return self._weights

    def names(self) -> list[str]:
        return list(self._seen)

    def records(self) -> Iterable[Host]:
        return [seen.record for seen in self._seen.values()]

    def health(self, name: str) -> Health:
        seen = self._seen.get(name)
        return Health.DEAD if seen is None else health(seen.record, seen.pulse, self._clock_s())

    def alive(self) -> dict[str, Host]:
        """The records of the hosts that live, draining ones too."""
        now_s = self._clock_s()
        return {name: seen.record for name, seen in self._seen.items() if seen.pulse.is_alive(now_s)}

    def offers(self, wanted: CreateSandbox, without: Iterable[str] = ()) -> dict[str, Offer]:
        """Which hosts may take such a sandbox."""
        alive = {name: record for name, record in self.alive().items() if name not in without}
        return offers(wanted, alive, {name: self._seen[name].taken for name in alive})

    def place(self, sandbox: str, name: str, shape: Shape | None = None) -> None:
        """The id is on that host; with a shape, it takes room that the host's record does not know of yet."""
        self._missed.pop(sandbox, None)
        self._places[sandbox] = name
        self._places.move_to_end(sandbox)
        if len(self._places) > MAX_PLACES:
            self._places.popitem(last=False)
        if shape is not None and name in self._seen:
            self._seen[name].taken = self._seen[name].taken.add(shape)

    def forget(self, sandbox: str) -> None:
        """It is not where we thought. The only host that there is must say so to us, too: see `_has`."""
        self._places.pop(sandbox, None)
        self._miss(sandbox)

    def view(self) -> list[dict[str, Any]]:
        """For the operator: each host's record, and what we think of it."""
        return [
            {**seen.record.view(), "health": self.health(name), "failures": seen.pulse.failures}
            for name, seen in sorted(self._seen.items())
        ]

    # Talking to them

    def upstream(self, name: str) -> Upstream:
        """The way to a host that lives. Raises `HostUnreachable` at once for one that does not."""
        upstream = self.alive_upstream(name)
        if upstream is None:
            raise HostUnreachable(f"host {name} cannot be reached now", sent=False)
        return upstream

    def alive_upstream(self, name: str) -> Upstream | None:
        """The way to a host, if it lives."""
        seen = self._seen.get(name)
        return seen.upstream if seen is not None and seen.pulse.is_alive(self._clock_s()) else None

    def answered(self, name: str) -> None:
        seen = self._seen.get(name)
        if seen is not None and seen.pulse.failures:
            seen.pulse.answered()

    async def ask(  # noqa: PLR0917 — whom, what, and as whom
        self,
        name: str,
        method: str,
        target: str,
        access: Access,
        owner: str = GATEWAY,
        sandbox: str | None = None,
        *,
        pools: Pools | None = None,
        network: Network | None = None,
        value: Any = None,
        headers: Pairs | None = None,
        limit_s: float = ASK_S,
        max_bytes: int = MAX_JSON_BYTES,
        even_dead: bool = False,
    ) -> Answer:
        """A small request to a host, JSON both ways. Raises `HostUnreachable`, also for one that refuses our tickets,
        or `HostBroken`, also for an answer of more than `max_bytes`."""
        seen = self._seen.get(name)
        upstream = seen.upstream if even_dead and seen is not None else self.upstream(name)
        ticket = self._tickets.get(name, owner, access, sandbox, pools=pools, network=network)
        try:
            async with asyncio.timeout(limit_s):
                answer = await upstream.call(
                    method, target, ticket=ticket, value=value, headers=headers or [], max_bytes=max_bytes
                )
        except TimeoutError:
            self.failed(name)
            raise HostUnreachable(f"host {name} did not answer within {limit_s:.0f} s") from None
        except HostUnreachable:
            self.failed(name)
            raise
        found = Answer(*answer)
        if found.status == 401 and HostSaid(found.status, found.value).code == BadTicket.code:
            self.failed(name)  # nobody gets anything done there
            raise refuses_tickets(f"host {name}")
        self.answered(name)
        return found

    async def find(self, sandbox: str) -> str:
        """The host that has the id, of a sandbox or a task. `NotFound` if all hosts say that they never had it;
        `HostUnreachable` if we do not know, because some host could not be asked."""
        return self.place_of(sandbox) or await self._look_for(sandbox)

    def place_of(self, sandbox: str) -> str | None:
        """As `find`, where nobody has to be asked. The only host there is will say itself that it has never had it.

        What was on a host that is dead may have been taken over by another: then somebody has to be asked.
        """
        name = self._places.get(sandbox)
        if name is not None and name in self._seen:
            self._places.move_to_end(sandbox)
            return name if self.alive_upstream(name) is not None or self._was_missed(sandbox) else None
        return next(iter(self._seen)) if len(self._seen) == 1 and not self._was_missed(sandbox) else None

    def _was_missed(self, sandbox: str) -> bool:
        """Whether it was looked for just now, and nobody had it."""
        return self._clock_s() - self._missed.get(sandbox, float("-inf")) < MISSED_S

    def _miss(self, sandbox: str) -> None:
        self._missed[sandbox] = self._clock_s()
        self._missed.move_to_end(sandbox)
        if len(self._missed) > MAX_PLACES:
            self._missed.popitem(last=False)

    async def _look_for(self, sandbox: str) -> str:
        """Its owner first, then everybody else at once."""
        order = ranked(home_of(sandbox), self._weights)
        silent = []
        for some in (order[:1], order[1:]):
            said = await asyncio.gather(*(self._has(name, sandbox) for name in some))
            for name, has in zip(some, said, strict=True):
                if has:
                    self.place(sandbox, name)
                    return name
            silent += [name for name, has in zip(some, said, strict=True) if has is None]
        if silent or not order:
            self._miss(sandbox)
            known = ", ".join(silent) or "none is known"
            raise HostUnreachable(f"no host that could be asked has {sandbox}; not reached: {known}")
        raise not_found(sandbox)

    async def _has(self, name: str, sandbox: str) -> bool | None:
        """Whether the host has the id; None if it cannot be asked."""
        try:
            value = {"ids": [sandbox]}
            answer = await self.ask(name, "POST", "/v1/sandboxes/states", Access.HOST, value=value, limit_s=FIND_S)
            value = answer.or_raise()
            if value["states"].get(sandbox) is not None:
                return True
            return None if value.get("unsettled") else False  # it may be in what a lost host left
        except HostUnreachable:
            return None
        except (WarrenError, HostBroken, LookupError, TypeError, AttributeError) as error:
            log.warning("a host does not say which ids it has", extra={"host": name, "why": str(error)})
            return None
