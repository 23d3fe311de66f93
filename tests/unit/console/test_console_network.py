"""Network policies on the command line: what is typed is what the contract reads, and what is shown can be typed."""

import argparse
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import network as contract
from contract.errors import BadField
from contract.fields import Fields
from contract.network import HostRule, Mode, NetRule, Network
from warren_console import network

WEB = (80, 443)


def read(policy: str | None, *rules: str, hold_sec: int | None = None) -> Network:
    """The policy that a command sends for these words, as a gateway reads it."""
    said = network.asked(policy, [network.rule(text) for text in rules], hold_sec)
    fields = Fields.parse(json.dumps(said or {}).encode())
    found = Network.read(fields)
    fields.end()
    return found


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("example.com", HostRule("example.com")),
        ("*.Example.com", HostRule("*.example.com")),
        ("example.com:8443", HostRule("example.com", (8443,))),
        ("example.com:443,80", HostRule("example.com", (80, 443))),
        ("a_b.example.com", HostRule("a_b.example.com")),
        ("GET,HEAD http://example.com/path/*", HostRule("example.com", (80,), ("GET", "HEAD"), ("/path/*",))),
        ("get  http://example.com", HostRule("example.com", (80,), ("GET",))),
        ("http://*.example.com:8080/a", HostRule("*.example.com", (8080,), (), ("/a",))),
        ("10.0.0.0/8:5432", NetRule("10.0.0.0/8", 5432)),
        ("192.0.2.1:22", NetRule("192.0.2.1/32", 22)),
        ("0.0.0.0/0:1", NetRule("0.0.0.0/0", 1)),
    ],
)
def test_a_rule_means_what_it_says(text: str, meant: HostRule | NetRule) -> None:
    found = read(None, text)
    assert found.policy is Mode.LIST
    assert (*found.allow, *found.allow_addresses) == (meant,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must look like example.com"),
        ("example.com/path", "must look like example.com"),
        ("example.com:", "must look like example.com"),
        ("*", "must look like example.com"),
        ("*example.com", "must look like example.com"),
        ("ex*mple.com", "must look like example.com"),
        ("[::1]:80", "must look like example.com"),
        ("0x7f000001:80", "must look like example.com"),
        ("user@example.com", "must look like example.com"),
        ("GET http://example.com/*/a", "must look like example.com"),
        ("ftp://example.com/a", "must look like example.com"),
        ("example.com:0", "a port is from 1 to 65535"),
        ("example.com:80,70000", "a port is from 1 to 65535"),
        ("10.0.0.0/8", "an address needs a port, as 10.0.0.0/8:5432"),
        ("10.0.0.0/33:1", "must be addresses of IPv4"),
        ("10.0.0.256:1", "must be addresses of IPv4"),
        ("010.0.0.1:1", "must be addresses of IPv4"),
        ("127.1:80", "must be addresses of IPv4"),
        ("2130706433:80", "must be addresses of IPv4"),
        ("https://example.com/path", "nobody sees the method and the path of https"),
        ("GET https://example.com", "nobody sees the method and the path of https"),
        ("FETCH http://example.com/", "FETCH is not one of the methods GET, HEAD"),
        ("http://example.com", "needs a method or a path"),
    ],
)
def test_a_rule_that_is_none_is_named_with_what_it_should_look_like(text: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        network.rule(text)
    assert said in str(refused.value)
    assert str(refused.value).endswith(f"got {text!r}")


@given(
    st.from_regex(r"[a-zA-Z0-9.*:/_,%-]{0,20}", fullmatch=True)
    | st.from_regex(r"(GET )?http://[a-z.*:0-9]{0,12}/?[a-z*?%]{0,5}", fullmatch=True)
    | st.from_regex(r"[0-9.]{1,15}(/[0-9]{1,2})?:[0-9]{1,5}", fullmatch=True)
)
def test_whatever_is_taken_here_is_taken_by_the_contract(text: str) -> None:
    try:
        network.rule(text)
    except argparse.ArgumentTypeError:
        return
    read(None, text)


labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,5}[a-z0-9])?", fullmatch=True)
hosts = st.builds("{}{}.example".format, st.sampled_from(["", "*."]), labels)
ports = st.lists(st.integers(1, 65535), min_size=1, max_size=3, unique=True).map(lambda some: tuple(sorted(some)))
methods = st.lists(st.sampled_from(contract.METHODS), max_size=3, unique=True).map(tuple)
paths = st.sampled_from([(), ("/",), ("/a/*",), ("/a?b=c&d",)])
rules = st.builds(HostRule, hosts, ports | st.just(WEB)) | st.builds(HostRule, hosts, ports, methods, paths)
nets = st.builds(NetRule, st.sampled_from(["10.0.0.0/8", "192.0.2.7/32", "0.0.0.0/0"]), st.integers(1, 65535))


@given(st.lists(rules, max_size=4), st.lists(nets, max_size=4))
def test_what_is_shown_of_a_rule_can_be_typed_as_one(allow: list[HostRule], addresses: list[NetRule]) -> None:
    shown = network.rule_texts(Network(Mode.LIST, tuple(allow), tuple(addresses)).view())
    assert read("list", *shown) == Network(Mode.LIST, tuple(allow), tuple(addresses))


def test_several_paths_are_several_rules() -> None:
    view = Network(Mode.LIST, (HostRule("example.com", (80,), ("GET",), ("/a", "/b/*")),)).view()
    assert network.rule_texts(view) == ["GET http://example.com/a", "GET http://example.com/b/*"]


def test_options_that_say_nothing_are_no_policy_and_those_that_cannot_be_meant_are_refused() -> None:
    assert network.asked(None, []) is None
    assert network.asked("deny", []) == {"policy": "deny"}
    assert read("open", hold_sec=5) == Network(Mode.OPEN, hold_sec=5)
    assert read(None, hold_sec=0) == Network()
    with pytest.raises(ValueError, match="deny allows nothing"):
        network.asked("deny", [network.rule("example.com")])


def test_the_policies_and_the_methods_are_those_of_the_contract() -> None:
    assert tuple(Mode) == network.POLICIES
    assert network.METHODS == contract.METHODS
    assert set(network.LIMITS) == set(vars(contract.Limits()))


@pytest.mark.parametrize("limit", network.LIMITS)
def test_every_limit_has_words(limit: str) -> None:
    view = Network.decode({"policy": "open", "limits": {limit: 7}}).view()
    assert "at most 7 " in " ".join(network.lines(view))


@pytest.mark.parametrize(
    ("asked", "lines", "short"),
    [
        ({}, ["nothing"], "deny"),
        ({"policy": "deny", "allow": [{"host": "example.com"}]}, ["nothing"], "deny"),
        ({"policy": "list"}, ["nothing"], "list"),
        ({"policy": "registries"}, ["the registries of the host"], "registries"),
        (
            {"policy": "open", "allow_addresses": [{"cidr": "10.0.0.0/8", "port": 5432}]},
            ["every public address", "the registries of the host", "10.0.0.0/8:5432"],
            "open: 10.0.0.0/8:5432",
        ),
        (
            {"allow": [{"host": f"{letter}.example"} for letter in "abcde"], "hold_sec": 90, "limits": {"up_mb": 5}},
            [
                *(f"{letter}.example" for letter in "abcde"),
                "at most 5 MB up",
                "anything else waits 1m30s for a change of this",
            ],
            "list: a.example, b.example, c.example, 2 more",
        ),
    ],
)
def test_a_policy_in_words(asked: dict[str, Any], lines: list[str], short: str) -> None:
    view = Network.decode(asked).view()
    assert network.lines(view) == lines
    assert network.in_short(view) == short


def test_no_policy_is_a_dash() -> None:
    assert network.in_short(None) == "-"


def test_a_name_that_only_the_contract_knows_to_be_too_long_is_refused_there() -> None:
    with pytest.raises(BadField, match="253"):
        read(None, ".".join(["a" * 60] * 5))
