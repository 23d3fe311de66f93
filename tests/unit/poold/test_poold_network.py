"""Policies of sandboxes over the API: asked for, inherited, narrowed, changed."""

from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from contract.models import Caller, CreateSandbox, ShapeLimits
from contract.network import HostRule, Limits, LimitsAsked, Mode, NetRule, Network, Within
from poold.egress.policy import Allowed, Refused, Target, decide
from poold.sandboxes import HostNetwork
from tests.unit.poold.poold_host import Host, open_host

pytestmark = pytest.mark.usefixtures("nothing_warm")

MIRROR = HostRule("mirror.example", (443,))


def wish(body: bytes) -> CreateSandbox:
    return CreateSandbox.parse(body, ShapeLimits(4, 4096, 4096))


async def network_of(host: Host, sandbox: str) -> Any:
    return (await host.admin("GET", f"/v1/sandboxes/{sandbox}/network")).json


async def test_a_sandbox_reaches_nothing_unless_it_asks(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        told = await network_of(host, await host.create())
        assert told["network"]["policy"] == "deny"
        assert [each["level"] for each in told["within"]] == ["host"]


async def test_a_policy_is_told_with_its_sandbox_and_can_be_changed(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(network={"allow": [{"host": "API.example"}]})
        path = f"/v1/sandboxes/{sandbox}"
        view = (await host.admin("GET", path)).json["network"]
        assert (view["policy"], view["allow"][0]["host"], view["allow"][0]["ports"]) == (
            "list",
            "api.example",
            [80, 443],
        )
        changed = await host.admin("PUT", f"{path}/network", {"policy": "open", "hold_sec": 5})
        assert (changed.status, changed.json["network"]["policy"], changed.json["network"]["hold_sec"]) == (
            200,
            "open",
            5,
        )
        kinds = [event["kind"] for event in (await host.admin("GET", f"{path}/events")).json["events"]]
        assert "network" in kinds


async def test_a_sandbox_that_has_ended_has_no_policy_to_change(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await host.admin("DELETE", f"/v1/sandboxes/{sandbox}")
        refused = await host.admin("PUT", f"/v1/sandboxes/{sandbox}/network", {"policy": "open"})
        assert (refused.status, refused.code) == (409, "wrong_state")


async def test_the_policy_of_a_key_is_the_default_and_stays_around_every_other(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        key = Caller("ann", None, Network(Mode.REGISTRIES))
        inherited = await host.sandboxes.create(wish(b"{}"), key)
        assert inherited.network.policy is Mode.REGISTRIES
        asked = await host.sandboxes.create(wish(b'{"network": {"policy": "open"}}'), key)
        assert asked.network.policy is Mode.OPEN
        assert asked.within == (Within("key", Network(Mode.REGISTRIES)),)


async def test_an_engine_that_isolates_nothing_promises_nothing(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.isolates = False
        refused = await host.admin("POST", "/v1/sandboxes", {"network": {"policy": "open"}})
        assert (refused.status, refused.json["error"]["field"]) == (400, "network")
        sandbox = await host.create()
        refused = await host.admin("PUT", f"/v1/sandboxes/{sandbox}/network", {"policy": "open"})
        assert (refused.status, refused.json["error"]["field"]) == (400, "network")


async def test_connections_of_a_sandbox_without_any(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        assert (await host.admin("GET", f"/v1/sandboxes/{sandbox}/egress")).json == {"rows": [], "open": []}
        bad = await host.admin("GET", f"/v1/sandboxes/{sandbox}/egress?verdict=maybe")
        assert (bad.status, bad.json["error"]["field"]) == (400, "verdict")


def allowed(host: HostNetwork, network: Network, target: Target, *within: Within) -> bool:
    return isinstance(decide(host.policy(network, within), target), Allowed)


def test_a_level_can_only_take_away() -> None:
    host = HostNetwork(registries=(MIRROR,))
    web = Target(443, name="a.example")
    mirror = Target(443, name="mirror.example")
    open_ = Network(Mode.OPEN)
    assert allowed(host, open_, web)
    assert not allowed(host, open_, web, Within("key", Network(Mode.REGISTRIES)))
    assert allowed(host, open_, mirror, Within("key", Network(Mode.REGISTRIES)))
    assert not allowed(HostNetwork(most=Mode.REGISTRIES, registries=(MIRROR,)), open_, web)
    assert not allowed(HostNetwork(most=Mode.DENY, registries=(MIRROR,)), open_, mirror)
    assert not allowed(host, Network(), web, Within("key", open_))


def test_only_the_operator_opens_private_addresses() -> None:
    listed = Network(Mode.LIST, (HostRule("db.example", (5432,)),), (NetRule("10.0.0.0/8", 5432),))
    private = Target(5432, address=ip_address("10.1.2.3"))
    verdict = decide(HostNetwork().policy(listed, ()), private)
    assert isinstance(verdict, Refused)
    operator = HostNetwork(private_nets=(NetRule("10.1.0.0/16", 5432),))
    assert allowed(operator, listed, private)
    assert not allowed(operator, Network(Mode.OPEN), private)
    assert not allowed(operator, listed, Target(5432, address=ip_address("10.2.0.1")))


def test_limits_are_the_smallest_of_all() -> None:
    host = HostNetwork(limits=Limits(connections=50, down_mb=100))
    key = Within("key", Network(Mode.OPEN, limits=LimitsAsked(connections=20, up_mb=5)))
    policy = host.policy(Network(Mode.OPEN, limits=LimitsAsked(connections=40, down_mb=900, idle_sec=5)), (key,))
    assert policy.limits == Limits(connections=20, connects_per_sec=100, idle_sec=5, up_mb=5, down_mb=100)
