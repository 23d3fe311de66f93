"""What a policy allows: levels only take away, and no name leads to where nobody may go."""

import json
from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.network import METHODS, HostRule, Limits, Mode, NetRule, Network
from poold.egress.addresses import Address, Kind, kind_of
from poold.egress.policy import (
    CLOSED_PORTS,
    Allowed,
    Asked,
    Level,
    Policy,
    Refused,
    Target,
    decide,
    decide_address,
    level,
    may_ask,
)

PUBLIC, PRIVATE, METADATA = ip_address("93.184.216.34"), ip_address("10.1.2.3"), ip_address("169.254.169.254")
OPEN = Level("request", is_open=True)

hosts = st.sampled_from(["a.example.com", "b.example.com", "*.example.com", "example.com", "*.com"])
ports = st.sampled_from([22, 25, 53, 80, 443, 853])
addresses: st.SearchStrategy[Address] = st.one_of(
    st.sampled_from([PUBLIC, PRIVATE, METADATA, ip_address("fd00::1"), ip_address("2606:4700::1"), ip_address("::1")]),
    st.ip_addresses(),
)
host_rules = st.builds(
    HostRule,
    hosts,
    st.lists(ports, min_size=1, max_size=3).map(tuple),
    st.lists(st.sampled_from(METHODS), max_size=2).map(tuple),
    st.lists(st.sampled_from(["/", "/a/*", "/b"]), max_size=2).map(tuple),
)
nets = st.builds(NetRule, st.sampled_from(["0.0.0.0/0", "10.0.0.0/8", "10.1.2.3/32", "169.254.0.0/16"]), ports)
some_hosts, some_nets = st.lists(host_rules, max_size=3).map(tuple), st.lists(nets, max_size=2).map(tuple)
levels = st.builds(Level, st.sampled_from(["host", "key"]), st.booleans(), some_hosts, some_nets, some_hosts)
all_limits = st.builds(Limits, connections=st.integers(1, 9), up_mb=st.none() | st.integers(1, 9))
policies = st.builds(
    Policy, st.lists(levels, max_size=3).map(tuple), some_hosts, some_nets, all_limits, st.sampled_from([0, 5])
)
asked = st.none() | st.builds(Asked, st.sampled_from(METHODS), st.sampled_from(["/", "/a/x", "/a/../b", "/b?x"]))
names = st.sampled_from(["a.example.com", "b.example.com", "example.com", "other.com", "other.org"])
targets = st.one_of(
    st.builds(Target, ports, name=names, asked=asked),
    st.builds(Target, ports, address=addresses, asked=asked),
)


def is_allowed(policy: Policy, target: Target) -> bool:
    return isinstance(decide(policy, target), Allowed)


@given(targets)
def test_nothing_is_allowed_by_no_policy(target: Target) -> None:
    verdict = decide(Policy(), target)
    assert verdict == Refused("policy", f"{target} is not allowed: the network policy is deny")
    assert not is_allowed(Policy((Level("request"),)), target)
    assert not may_ask(Policy(hold_s=5), "a.example.com")


@given(policies.filter(lambda policy: bool(policy.levels)), levels, targets, addresses, st.data())
def test_another_level_never_allows_more(
    policy: Policy, another: Level, target: Target, address: Address, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(policy.levels)))
    narrower = replace(policy, levels=(*policy.levels[:at], another, *policy.levels[at:]))
    if is_allowed(narrower, target):
        assert is_allowed(policy, target)
    if isinstance(decide_address(narrower, target, address, "x"), Allowed):
        assert isinstance(decide_address(policy, target, address, "x"), Allowed)
    if target.name is not None and may_ask(narrower, target.name):
        assert may_ask(policy, target.name)


@given(policies, targets, addresses)
def test_no_address_passes_that_is_not_public_unless_the_operator_says_so(
    policy: Policy, target: Target, address: Address
) -> None:
    verdict = decide_address(policy, target, address, "x")
    if kind_of(address) is Kind.FORBIDDEN:
        assert isinstance(verdict, Refused)
        assert verdict.why == "forbidden_address"
    closed = replace(policy, private_hosts=(), private_nets=())
    if kind_of(address) is Kind.PRIVATE:
        assert getattr(decide_address(closed, target, address, "x"), "why", None) == "private_address"
    if kind_of(address) is Kind.PUBLIC:
        assert verdict == Allowed("x")
    if target.address is not None and is_allowed(closed, target):
        assert kind_of(target.address) is Kind.PUBLIC


@given(policies, targets)
def test_a_target_that_is_allowed_may_be_asked_for(policy: Policy, target: Target) -> None:
    if target.name is not None and is_allowed(policy, target):
        assert may_ask(policy, target.name)


@given(policies)
def test_a_policy_comes_back_from_json(policy: Policy) -> None:
    assert Policy.decode(json.loads(json.dumps(policy.view()))) == policy


def test_the_rule_is_that_of_the_last_level() -> None:
    target = Target(443, name="a.example.com")
    listed = Level("key", hosts=(HostRule("*.example.com"),))
    assert decide(Policy((listed, OPEN)), target) == Allowed("open")
    assert decide(Policy((OPEN, listed)), target) == Allowed("*.example.com:80,443")
    registries = Level("image", registries=(HostRule("a.example.com", (443,)),))
    assert decide(Policy((OPEN, registries)), target) == Allowed("registries a.example.com:443")
    verdict = decide(Policy((OPEN, Level("key"), OPEN)), target)
    assert verdict == Refused("policy", "a.example.com:443 is not allowed by the network policy of the key")


@pytest.mark.parametrize("port", sorted(CLOSED_PORTS))
def test_open_has_closed_ports_that_a_list_can_open(port: int) -> None:
    target = Target(port, name="a.example.com")
    assert not is_allowed(Policy((OPEN,)), target)
    assert is_allowed(Policy((replace(OPEN, hosts=(HostRule("a.example.com", (port,)),)),)), target)


def test_addresses_are_allowed_by_nets_and_by_open() -> None:
    net = Level("request", nets=(NetRule("93.184.216.0/24", 443), NetRule("10.0.0.0/8", 443)))
    assert decide(Policy((net,)), Target(443, address=PUBLIC)) == Allowed("93.184.216.0/24:443")
    assert not is_allowed(Policy((net,)), Target(80, address=PUBLIC))
    assert not is_allowed(Policy((net,)), Target(443, address=ip_address("2606:4700::1")))
    assert not is_allowed(Policy((net,)), Target(443, name="a.example.com"))
    assert not is_allowed(Policy((net,)), Target(443, address=PRIVATE))
    assert decide(Policy((OPEN,)), Target(443, address=PUBLIC)) == Allowed("open")
    assert getattr(decide(Policy((OPEN,)), Target(443, address=METADATA)), "why", None) == "forbidden_address"
    assert not is_allowed(Policy((Level("request", hosts=(HostRule("*.com"),)),)), Target(443, address=PUBLIC))


def test_private_addresses_need_the_operator_and_whoever_asks() -> None:
    by_net = {"private_nets": (NetRule("10.0.0.0/8", 443),)}
    by_host = {"private_hosts": (HostRule("a.example.com"),)}
    named, numbered = Target(443, name="a.example.com"), Target(443, address=PRIVATE)
    listed = Level("request", hosts=(HostRule("a.example.com"),), nets=(NetRule("10.1.0.0/16", 443),))
    wide = replace(listed, is_open=True)
    for operator in (by_net, by_host):
        assert decide_address(Policy((listed,), **operator), named, PRIVATE, "x") == Allowed("x")  # type: ignore[arg-type]
        assert decide_address(Policy((wide,), **operator), named, PRIVATE, "x") == Allowed("x")  # type: ignore[arg-type]
        refused = decide_address(Policy((OPEN,), **operator), named, PRIVATE, "x")  # type: ignore[arg-type]
        assert isinstance(refused, Refused)
        assert (refused.why, "has to be listed" in refused.told) == ("private_address", True)
    assert is_allowed(Policy((listed,), private_nets=(NetRule("10.0.0.0/8", 443),)), numbered)
    assert is_allowed(Policy((wide,), private_nets=(NetRule("10.0.0.0/8", 443),)), numbered)
    assert not is_allowed(Policy((OPEN,), private_nets=(NetRule("10.0.0.0/8", 443),)), numbered)
    assert not is_allowed(Policy((listed,), private_nets=(NetRule("10.0.0.0/8", 80),)), numbered)
    registries = replace(OPEN, registries=(HostRule("a.example.com"),))
    assert decide_address(
        Policy((registries,), private_hosts=by_host["private_hosts"]), named, PRIVATE, "x"
    ) == Allowed("x")


RULE = HostRule("a.example.com", (80,), ("GET", "HEAD"), ("/", "/v1/*", "/exact"))


@pytest.mark.parametrize(
    "path", ["/", "/?x=../..", "/v1/", "/v1/x/y.tar.gz", "/v1/a;b=1", "/exact", "/exact?a//b%2f", "/v1/..x"]
)
def test_paths_that_a_rule_allows(path: str) -> None:
    policy = Policy((Level("request", hosts=(RULE,)),))
    assert is_allowed(policy, Target(80, name="a.example.com", asked=Asked("GET", path)))
    assert not is_allowed(policy, Target(80, name="a.example.com", asked=Asked("POST", path)))
    assert not is_allowed(policy, Target(80, name="a.example.com", asked=Asked("get", path)))
    assert not is_allowed(policy, Target(80, name="a.example.com"))
    assert not is_allowed(policy, Target(80, name="b.example.com", asked=Asked("GET", path)))
    for_all = Policy((Level("request", hosts=(replace(RULE, methods=()),)),))
    assert is_allowed(for_all, Target(80, name="a.example.com", asked=Asked("POST", path)))


@pytest.mark.parametrize(
    "path",
    [
        "",
        "*",
        "/v1",
        "/v2",
        "/exact/",
        "/exactly",
        "/v1/../admin",
        "/v1/./x",
        "/v1/..",
        "/v1//x",
        "//v1/x",
        "/v1/%2e%2e/x",
        "/v1/..\\x",
        "/v1/..;/admin",
        "/v1/..;a=b/admin",
        "/v1/.;/x",
        "http://a.example.com/v1/x",
    ],
)
def test_paths_that_a_rule_does_not_allow(path: str) -> None:
    target = Target(80, name="a.example.com", asked=Asked("GET", path))
    assert not is_allowed(Policy((Level("request", hosts=(RULE,)),)), target)
    assert is_allowed(Policy((Level("request", hosts=(replace(RULE, paths=()),)),)), target)


def test_a_name_may_be_asked_for_if_every_level_has_a_port_of_it() -> None:
    listed = Level("key", hosts=(HostRule("a.example.com", (22,)),))
    assert may_ask(Policy((OPEN, listed)), "a.example.com")
    assert not may_ask(Policy((OPEN, listed)), "b.example.com")
    assert not may_ask(Policy(), "a.example.com")
    assert may_ask(Policy((Level("image", registries=(HostRule("*.example.com"),)),)), "a.example.com")
    assert may_ask(Policy((Level("request"),), hold_s=5), "b.example.com")


REGISTRIES = (HostRule("mirror.example.com", (443,)),)
ALLOW, NETS = (HostRule("a.example.com"),), (NetRule("93.184.216.0/24", 443),)


@pytest.mark.parametrize(
    ("mode", "stands_for"),
    [
        (Mode.DENY, Level("key")),
        (Mode.REGISTRIES, Level("key", False, ALLOW, NETS, REGISTRIES)),
        (Mode.LIST, Level("key", False, ALLOW, NETS)),
        (Mode.OPEN, Level("key", True, ALLOW, NETS, REGISTRIES)),
    ],
)
def test_what_a_policy_stands_for_on_a_host(mode: Mode, stands_for: Level) -> None:
    assert level("key", Network(mode, ALLOW, NETS), iter(REGISTRIES)) == stands_for
