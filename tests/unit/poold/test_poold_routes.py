"""Around every request: each route has a refusal in these tests, each request an id, and each is counted."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from starlette.routing import BaseRoute, Match, Route

from poold.api.app import OPERATORS_ROUTES, ROUTES
from tests.unit.limits.exposition import Family, parse
from tests.unit.poold.poold_host import Host, open_host
from tests.unit.poold.poold_refusals import CLIENTS, GATEWAYS, OPERATORS
from tests.unit.poold.poold_task_refusals import OPERATORS_TASKS, TASKS
from tests.unit.poold.test_poold_api import BAD_REQUESTS, UNKNOWN, stopped
from tests.unit.poold.test_poold_ports import BAD_PORTS
from tests.unit.poold.test_poold_terminal import BAD_TERMINALS

pytestmark = pytest.mark.usefixtures("nothing_warm")


def is_refused_somewhere(route: BaseRoute, refusals: Iterable[tuple[str, str]]) -> bool:
    """Whether one of the refused requests is for this route; with another method only if it takes no input."""
    enough = Match.PARTIAL if isinstance(route, Route) and route.path in WITHOUT_INPUT else Match.FULL
    for method, target in refusals:
        scope = {"type": "http", "method": method, "path": target.split("?")[0], "headers": [], "root_path": ""}
        if method == "WS":
            scope["type"] = "websocket"
        match, _ = route.matches(scope)
        if match.value >= enough.value:
            return True
    return False


# These answer whatever they are asked, so all that can be wrong is the method.
WITHOUT_INPUT = {
    "/healthz",
    "/readyz",
    "/metrics",
    "/v1/usage",
    "/v1/host",
    "/v1/templates",
    "/admin/status",
    "/admin/top",
    "/admin/lease",
    "/admin/images",
    "/admin/audit/verify",
    "/admin/ledger",
    "/admin/ledger/check",
    "/admin/undrain",
}


def test_every_route_has_a_refusal_in_the_tests() -> None:
    everything = [*BAD_REQUESTS, *CLIENTS, *GATEWAYS, *OPERATORS, *TASKS, *OPERATORS_TASKS]
    refusals = [(method, path) for method, path, *_ in everything]
    refusals += [("WS", f"{UNKNOWN}/terminal{query}") for query in BAD_TERMINALS]
    refusals += [("WS", f"{UNKNOWN}/ports/{port}") for port in BAD_PORTS]
    missing = [route for route in (*ROUTES, *OPERATORS_ROUTES) if not is_refused_somewhere(route, refusals)]
    assert missing == []


async def test_every_bad_request_of_a_client_names_its_field(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        known = await stopped(host)
        for method, path, body, status, code, field in [*CLIENTS, *GATEWAYS]:
            reply = await host.ask(method, path if status == 404 else path.replace(UNKNOWN, known), body)
            assert (reply.status, reply.code) == (status, code), (method, path, reply.body[:200])
            assert field is None or reply.json["error"]["field"] == field
        await host.assert_nothing_is_used()


# The request's id.


async def test_a_request_keeps_its_id_in_the_reply_and_in_the_audit(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        reply = await host.ask("POST", "/v1/sandboxes", {}, X_Request_Id="my.request-1_A")
        assert reply.headers["x-request-id"] == "my.request-1_A"
        assert {row.request for row in await host.audit(sandbox=reply.json["id"])} == {"my.request-1_A"}
        refused = await host.ask("GET", UNKNOWN, X_Request_Id="of-a-refusal")
        assert refused.headers["x-request-id"] == "of-a-refusal"
        nowhere = await host.ask("GET", "/v2", X_Request_Id="of-nowhere")
        assert nowhere.headers["x-request-id"] == "of-nowhere"


@pytest.mark.parametrize("given", [None, "", "a b", "a" * 65, "a;b", "\xe4", '"a"'])
async def test_a_request_without_a_proper_id_is_given_one(tmp_path: Path, given: str | None) -> None:
    async with open_host(tmp_path) as host:
        headers = {} if given is None else {"X_Request_Id": given}
        replies = [await host.ask("POST", "/v1/sandboxes", {}, **headers) for _ in range(2)]
        ids = [reply.headers["x-request-id"] for reply in replies]
        assert all(re.fullmatch(r"rq-[0-9a-f]{16}", one) for one in ids)
        assert ids[0] != ids[1]
        for reply, request in zip(replies, ids, strict=True):
            assert {row.request for row in await host.audit(sandbox=reply.json["id"])} == {request}


# What is counted.


async def scraped(host: Host) -> dict[str, Family]:
    reply = await host.ask("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parse(reply.body)


def value(families: dict[str, Family], name: str, suffix: str = "", **labels: str) -> float:
    family = families[f"poold_{name}"]
    return sum(
        number
        for (sample, found), number in family.samples.items()
        if sample == family.name + suffix and labels.items() <= dict(found).items()
    )


async def test_the_counters_move(tmp_path: Path) -> None:
    async with open_host(tmp_path, warm=1, slots=2) as host:
        await host.ready()
        before = await scraped(host)
        sandbox = await host.create()
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/resume")
        await host.ask("POST", "/v1/sandboxes", {"image": "windows"})
        await host.create()
        assert (await host.ask("POST", "/v1/sandboxes", {})).status == 503
        after = await scraped(host)

        def grown(name: str, suffix: str = "", **labels: str) -> float:
            return value(after, name, suffix, **labels) - value(before, name, suffix, **labels)

        assert grown("http_requests_total", route="sandboxes.create", status="201") == 2
        assert grown("http_requests_total", route="sandboxes.create", status="400") == 1
        assert grown("http_request_seconds", "_count", route="sandboxes.create") == 4
        assert grown("claim_seconds", "_count") == 2
        assert grown("claims_total", outcome="warm") >= 1
        assert grown("claims_total", outcome="warm") + grown("claims_total", outcome="restored") == 2
        assert grown("claims_total", outcome="refused") == 1
        assert (grown("pause_seconds", "_count"), grown("resume_seconds", "_count")) == (1, 1)
        assert value(after, "sandboxes", state="running") == 2
        assert value(before, "pool_machines", image="host") > 0
        host.engine.broken.add("restore")
        await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        assert value(await scraped(host), "sandboxes", state="stopped") == 1
