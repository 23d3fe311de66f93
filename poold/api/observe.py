"""How the daemon is doing, for load balancers, Prometheus and people."""

from starlette.requests import Request
from starlette.responses import Response

from contract.errors import CapacityError
from poold.api.replies import json_reply
from poold.api.services import Services, services
from poold.ledger import sandboxes


async def healthz(request: Request) -> Response:
    """The process works."""
    return json_reply({"ok": True, "pool": services(request).pool.keeper.shares()})


async def readyz(request: Request) -> Response:
    """The host takes new sandboxes."""
    found = services(request)
    pressure = found.pressure.pressure
    if found.sandboxes.is_draining:
        raise NotReady("this host is being drained")
    if pressure is not None:
        raise NotReady(pressure.message)
    return json_reply({"ready": True})


async def metrics(request: Request) -> Response:
    found = services(request)
    states = await found.ledger.read(sandboxes.count_by_state)
    _machines(found)
    for state, count in states.items():
        found.metrics.sandboxes.set(count, state=state)
    return Response(found.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _machines(found: Services) -> None:
    """What each machine uses, as of now. A machine that is gone is not told of any more."""
    for gauge in (found.metrics.vm_cpu_seconds_total, found.metrics.vm_memory_bytes):
        gauge.clear()
    for share in found.pool.keeper.shares():
        for kind in ("warm", "wanted"):
            found.metrics.pool_machines.set(share[kind], image=share["image"], kind=kind)
    for live in found.sandboxes.machines():
        usage = None if found.cgroups is None else found.cgroups.usage(live.place.machine_id)
        if usage is not None:
            found.metrics.vm_cpu_seconds_total.set(usage.cpu_s, sandbox=live.sandbox.id)
            found.metrics.vm_memory_bytes.set(usage.memory_bytes, sandbox=live.sandbox.id)


class NotReady(CapacityError):
    code = "not_ready"
