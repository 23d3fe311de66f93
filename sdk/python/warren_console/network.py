"""Network policies as people type and read them: rules on the command line, and words for a policy. No I/O.

What is shown of a rule can be typed as one.
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from warren_console.text import span

POLICIES = ("deny", "registries", "list", "open")
MEANS = "deny: nothing; registries: where packages come from; list: what --allow says; open: every public address"
FORMS = "example.com, *.example.com, example.com:8443, 10.0.0.0/8:5432 or 'GET,HEAD http://example.com/path/*'"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
WEB_PORTS = (80, 443)
PLAIN_PORTS = (80,)
MAX_PORT = 65535
SHOWN_RULES = 3  # in one line with other things

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
# The last part begins with a letter: what ends in a number is an address.
_NAME = rf"(?P<host>(?:\*\.)?(?:{_LABEL}\.)*[A-Za-z](?:[A-Za-z0-9-]{{0,61}}[A-Za-z0-9])?)"
_PORTS = r"(?::(?P<ports>[0-9]{1,5}(?:,[0-9]{1,5})*))?"
HOST = re.compile(_NAME + _PORTS)
PLAIN = re.compile(rf"(?:(?P<methods>[A-Za-z]+(?:,[A-Za-z]+)*) +)?http://{_NAME}{_PORTS}(?P<path>/[!-)+-~]*\*?)?")
NET = re.compile(r"(?P<address>[0-9]+(?:\.[0-9]+)*)(?:/(?P<bits>[0-9]+))?(?::(?P<port>[0-9]{1,5}))?")
# A 0 before a number is an octal one to some and nothing to others.
OCTET = re.compile(r"0|[1-9][0-9]{0,2}")
ENCRYPTED = re.compile(r"(?:[A-Za-z,]+ +)?https://.*")

Rule = tuple[str, dict[str, Any]]  # the field of a policy that it belongs into, and the rule
LIMITS = {
    "connections": "{} connections at a time",
    "connects_per_sec": "{} new ones a second",
    "idle_sec": "{} s without a byte",
    "up_mb": "{} MB up",
    "down_mb": "{} MB down",
}


def add_options(parser: argparse.ArgumentParser, option: str = "--network", whose: str = "what it may reach") -> None:
    """`option` for the policy, and `--allow`; both say what a network is to be (`asked`)."""
    parser.add_argument(option, dest="policy", choices=POLICIES, help=f"{whose}; {MEANS}")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        type=rule,
        metavar="RULE",
        help=f"besides, as often as you like: {FORMS.replace('%', '%%')}",
    )


def asked(policy: str | None, rules: Sequence[Rule], hold_sec: int | None = None) -> dict[str, Any] | None:
    """The policy that these options say; None if they say nothing. Raises `ValueError` if that cannot be meant."""
    if policy == "deny" and rules:
        raise ValueError("deny allows nothing: --allow goes with registries, list or open")
    if policy is None and not rules and hold_sec is None:
        return None
    network: dict[str, Any] = {} if policy is None else {"policy": policy}
    for field, each in rules:
        network.setdefault(field, []).append(each)
    return network if hold_sec is None else {**network, "hold_sec": hold_sec}


def rule(text: str) -> Rule:
    """What `--allow` is given, or `ArgumentTypeError` with what it should look like."""
    if found := NET.fullmatch(text):
        return "allow_addresses", _net(found, text)
    if found := HOST.fullmatch(text):
        return "allow", {"host": found["host"], **_ports(found["ports"], text)}
    if found := PLAIN.fullmatch(text):
        return "allow", _plain(found, text)
    if ENCRYPTED.fullmatch(text):
        raise _wrong(text, "nobody sees the method and the path of https: allow the name alone, as example.com")
    raise _wrong(text, f"must look like {FORMS}")


def rule_texts(network: Mapping[str, Any]) -> list[str]:
    """The rules of a policy, each as it can be typed."""
    hosts = [text for each in network.get("allow") or () for text in _host_texts(each)]
    return [*hosts, *(f"{each['cidr']}:{each['port']}" for each in network.get("allow_addresses") or ())]


def lines(network: Mapping[str, Any]) -> list[str]:
    """All that a policy says besides its name, a line each."""
    said = [f"at most {_limits(network)}"] if _limits(network) else []
    if network.get("hold_sec"):
        said.append(f"anything else waits {span(network['hold_sec'])} for a change of this")
    return [*_reached(network), *said]


def in_short(network: Mapping[str, Any] | None) -> str:
    """A policy in a few words: `list: example.com, *.example.org, 3 more`."""
    if network is None:
        return "-"
    rules = [] if network.get("policy") == "deny" else rule_texts(network)
    shown = [*rules[:SHOWN_RULES], *([f"{len(rules) - SHOWN_RULES} more"] if len(rules) > SHOWN_RULES else [])]
    return str(network.get("policy")) + (f": {', '.join(shown)}" if shown else "")


def _reached(network: Mapping[str, Any]) -> list[str]:
    match network.get("policy"):
        case "deny":
            return ["nothing"]
        case "registries":
            return ["the registries of the host", *rule_texts(network)]
        case "open":
            return ["every public address", "the registries of the host", *rule_texts(network)]
        case _:
            return rule_texts(network) or ["nothing"]


def _limits(network: Mapping[str, Any]) -> str:
    limits = network.get("limits") or {}
    return ", ".join(words.format(limits[name]) for name, words in LIMITS.items() if limits.get(name) is not None)


def _host_texts(rule: Mapping[str, Any]) -> Iterator[str]:
    methods, paths, ports = rule.get("methods") or (), rule.get("paths") or (), tuple(rule.get("ports") or ())
    if not methods and not paths:
        yield rule["host"] + _port_text(ports, WEB_PORTS)
        return
    for path in paths or ("",):
        yield f"{','.join(methods)} http://{rule['host']}{_port_text(ports, PLAIN_PORTS)}{path}".lstrip()


def _port_text(ports: Sequence[int], usual: Sequence[int]) -> str:
    return "" if not ports or tuple(ports) == usual else f":{','.join(map(str, ports))}"


def _net(found: re.Match[str], text: str) -> dict[str, Any]:
    if found["port"] is None:
        raise _wrong(text, "an address needs a port, as 10.0.0.0/8:5432")
    octets, bits = found["address"].split("."), found["bits"] or "32"
    is_plain = len(octets) == 4 and all(OCTET.fullmatch(number) for number in (*octets, bits))
    if not is_plain or int(bits) > 32 or any(int(octet) > 255 for octet in octets):
        raise _wrong(text, "must be addresses of IPv4, as 10.0.0.0/8:5432")
    return {"cidr": f"{found['address']}/{bits}", "port": _port(found["port"], text)}


def _plain(found: re.Match[str], text: str) -> dict[str, Any]:
    methods = (found["methods"] or "").upper().split(",") if found["methods"] else []
    if unknown := set(methods) - set(METHODS):
        raise _wrong(text, f"{min(unknown)} is not one of the methods {', '.join(METHODS)}")
    if not methods and not found["path"]:
        raise _wrong(text, "needs a method or a path, as 'GET http://example.com/path/*'; or give the name alone")
    paths = {"paths": [found["path"]]} if found["path"] else {}
    return {"host": found["host"], **_ports(found["ports"], text), **({"methods": methods} if methods else {}), **paths}


def _ports(ports: str | None, text: str) -> dict[str, Any]:
    return {} if ports is None else {"ports": [_port(port, text) for port in ports.split(",")]}


def _port(port: str, text: str) -> int:
    if not 1 <= int(port) <= MAX_PORT:
        raise _wrong(text, f"a port is from 1 to {MAX_PORT}")
    return int(port)


def _wrong(text: str, what: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{what}, got {text!r}")
