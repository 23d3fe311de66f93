"""How the gateway and its hosts are: for load balancers, for Prometheus, for the operator; and what owners used."""

import asyncio
from collections import Counter
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from contract import asked
from contract.errors import CapacityError
from contract.hosts import is_loopback
from contract.keys import Forbidden, Scope
from contract.tickets import Access
from gateway.auth import need
from gateway.errors import HostUnreachable
from gateway.handlers.queries import read_query, whose
from gateway.liveness import Health
from gateway.replies import json_reply
from gateway.services import Call, Services, call_of

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
FORWARDED = ("x-forwarded-for", "forwarded", "x-real-ip")


class NotReady(CapacityError):
    code = "not_ready"


async def healthz(request: Request) -> Response:
    """The process works."""
    return json_reply({"ok": True, "name": call_of(request).services.config.name})


async def readyz(request: Request) -> Response:
    """It can serve: the registry can be read, and a host lives."""
    services = call_of(request).services
    if not services.watch.is_read:
        raise NotReady("the registry cannot be read", retry_after_s=1)
    if not services.hosts.alive():
        raise NotReady("no host lives", retry_after_s=1)
    return json_reply({"ready": True})


async def hosts(request: Request) -> Response:
    return json_reply({"hosts": call_of(request).services.hosts.view()})


async def metrics(request: Request) -> Response:
    """For an admin's key, or without one from this machine itself; not for whoever comes through a proxy on it."""
    call = call_of(request)
    if call.caller is not None:
        need(call.caller, Scope.ADMIN)
    elif not is_loopback(call.address) or any(name in request.headers for name in FORWARDED):
        raise Forbidden("metrics are for an admin's key, or for this machine itself")
    gauges = {
        "hosts": lambda: _healths(call.services),
        "refusals_dropped": lambda: _dropped(call.services),
        "registry_read": lambda: _registry_read(call.services),
    }
    return Response(call.services.metrics.render(gauges), media_type=PROMETHEUS)


def _healths(services: Services) -> dict[tuple[str, ...], float]:
    found = Counter(services.hosts.health(name) for name in services.hosts.names())
    return {(each.value,): found[each] for each in Health}


def _dropped(services: Services) -> dict[tuple[str, ...], float]:
    return {(): services.refusals.dropped}


def _registry_read(services: Services) -> dict[tuple[str, ...], float]:
    return {(): services.watch.is_read}


async def usage(request: Request) -> Response:
    """What the owner has used, over all hosts; an admin may ask for another's, or with `owner=*` for everybody's."""
    call = call_of(request)
    access, owner = whose(call, read_query(request, asked.whose))
    target = "/v1/usage" + (f"?{urlencode({'owner': owner})}" if owner else "")
    said = await asyncio.gather(*(_asked(call, name, target, access) for name in call.services.hosts.names()))
    totals = summed([page["owners"] for _, page in said if page is not None])
    silent = sorted(name for name, page in said if page is None)
    return json_reply({"at_ms": call.services.now_ms(), "owners": totals, "incomplete": silent})


async def _asked(call: Call, name: str, target: str, access: Access) -> tuple[str, Any]:
    try:
        return name, (await call.services.hosts.ask(name, "GET", target, access, call.who.owner)).or_raise()
    except HostUnreachable:
        return name, None


def summed(pages: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row for each owner: the sum of all that is a number."""
    totals: dict[str, dict[str, Any]] = {}
    for row in (row for page in pages for row in page):
        total = totals.setdefault(row["owner"], {"owner": row["owner"]})
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                total[name] = total.get(name, 0) + value
    return [totals[owner] for owner in sorted(totals)]
