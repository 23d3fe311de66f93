"""How the daemon is doing, for load balancers, Prometheus and people."""

import asyncio
from collections import Counter
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from contract.errors import CapacityError
from contract.hosts import Host
from contract.ring import Room
from contract.states import State
from poold.api.replies import json_reply
from poold.api.services import Services, services
from poold.cgroups import Usage
from poold.ledger import sandboxes, tasks
from poold.pool import OVERHEAD_MB
from poold.sandboxes import Live

BEHIND_S = 30.0  # a store that is away for a moment is no reason to go elsewhere


async def healthz(request: Request) -> Response:
    """The process works."""
    return json_reply({"ok": True, "pool": services(request).pool.keeper.shares()})


async def readyz(request: Request) -> Response:
    """The host takes new sandboxes."""
    found = services(request)
    pressure = found.pressure.pressure
    found.membership.check()
    if found.sandboxes.is_draining:
        raise NotReady("this host is being drained")
    if pressure is not None:
        raise NotReady(pressure.message)
    if is_behind(found):
        why = found.replica.why if found.replica is not None else ""
        raise NotReady(f"the ledger's replica has been behind for {found.ledger.lag_s:.0f} s: {why or 'it catches up'}")
    return json_reply({"ready": True, "store": found.facts.store, "cluster": found.facts.cluster})


async def host(request: Request) -> Response:
    """This host's record, as it is in the registry."""
    return json_reply((await record(services(request))).view())


async def record(found: Services) -> Host:
    """What gateways have to know of this host, now."""
    facts, places, shares = found.facts, found.pool.places, found.pool.keeper.shares()
    # A warm machine is room: it is claimed, or makes way for one of another shape.
    slots = places.free + sum(share["warm"] for share in shares)
    memory_mb = places.memory_left_mb + sum(share["warm"] * (share["memory_mb"] + OVERHEAD_MB) for share in shares)
    return Host(
        name=facts.name,
        address=facts.address,
        beat=found.sandboxes.now_ms(),
        slots=_room(facts.slots, slots),
        memory_mb=_room(places.memory_budget_mb, memory_mb),
        vcpus=facts.limits.vcpus,
        max_memory_mb=facts.limits.memory_mb,
        max_disk_mb=facts.limits.disk_mb,
        images=await asyncio.to_thread(found.images.shapes),
        default_image=facts.default_image,
        draining=found.sandboxes.is_draining,
        ready=is_ready(found),
        version=facts.version,
    )


def is_ready(found: Services) -> bool:
    """It takes new sandboxes."""
    is_free = not found.sandboxes.is_draining and found.pressure.pressure is None
    return is_free and found.membership.is_held and not is_behind(found)


def is_behind(found: Services) -> bool:
    """The ledger's replica does not get on: who takes this host over would not know what it did."""
    return (found.ledger.lag_s or 0.0) > BEHIND_S


def _room(every: int, free: int) -> Room:
    return Room(every, max(0, min(every, free)))


async def metrics(request: Request) -> Response:
    found = services(request)
    states = await found.ledger.read(sandboxes.count_by_state)
    for state in State:
        found.metrics.sandboxes.set(states.get(state, 0), state=state)
    for task_state, count in (await found.ledger.read(tasks.count_by_state)).items():
        found.metrics.tasks.set(count, state=task_state)
    return Response(found.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def measure(found: Services) -> None:
    """From now on every scrape asks what the machines use and how many wait."""

    def of_machines(fact: Callable[[Usage], float]) -> dict[tuple[str, ...], float]:
        usages = ((live.sandbox.id, usage_of(found, live)) for live in found.sandboxes.machines())
        return {(sandbox_id,): fact(usage) for sandbox_id, usage in usages if usage is not None}

    def of_pool() -> dict[tuple[str, ...], float]:
        kinds = ("warm", "wanted")
        counted: Counter[tuple[str, ...]] = Counter()
        for share in found.pool.keeper.shares():
            counted.update({(share["image"], kind): share[kind] for kind in kinds})
        return dict(counted)

    found.metrics.vm_cpu_seconds_total.read_from(lambda: of_machines(lambda usage: usage.cpu_s))
    found.metrics.vm_memory_bytes.read_from(lambda: of_machines(lambda usage: usage.memory_bytes))
    found.metrics.pool_machines.read_from(of_pool)
    found.metrics.draining.read_from(lambda: {(): float(found.sandboxes.is_draining)})
    _measure_lease(found)


def _measure_lease(found: Services) -> None:
    keeper, members, metrics = found.membership.keeper, found.membership.members, found.metrics
    if keeper is None or members is None:
        return
    metrics.lease_epoch.read_from(lambda: {(): keeper.epoch})
    metrics.lease_left_seconds.read_from(lambda: {(): keeper.left_s})
    metrics.lease_renewals_total.read_from(
        lambda: {("renewed",): keeper.counted.renewals, ("failed",): keeper.counted.failures}
    )
    metrics.takeover_troubles.read_from(lambda: {(): members.troubles()})
    metrics.hosts_alive.read_from(lambda: {(): len(members.living())})


def usage_of(found: Services, live: Live) -> Usage | None:
    """What a sandbox's machine uses, where the host counts it."""
    return None if found.cgroups is None else found.cgroups.usage(live.place.machine_id)


class NotReady(CapacityError):
    code = "not_ready"
