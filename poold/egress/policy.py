"""What a guest may reach, as a function of its policy and of what it asks for. No I/O.

A policy has levels: of the host, of the key, of the image, of the request. Each of them has to allow a target, so that
another level can only ever take away. What an address is (public, private) is looked at a second time when a name has
been resolved: `decide` is for what the guest says, `decide_address` for what the proxy found out.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from ipaddress import IPv4Network
from typing import Any

from contract.network import HostRule, Limits, Mode, NetRule, Network
from poold.egress.addresses import Address, Kind, kind_of
from poold.egress.names import matches

# Not with `open`: mail, which is abused, and names, which are for the proxy to resolve.
CLOSED_PORTS = frozenset({25, 53, 853})


@dataclass(frozen=True)
class Level:
    """One of the policies that hold together, with what `registries` stands for on this host in it."""

    name: str
    is_open: bool = False
    hosts: tuple[HostRule, ...] = ()
    nets: tuple[NetRule, ...] = ()
    registries: tuple[HostRule, ...] = ()


@dataclass(frozen=True)
class Policy:
    """All that a proxy goes by. The one without levels allows nothing."""

    levels: tuple[Level, ...] = ()
    # What may have a private address: only the host's operator can say so.
    private_hosts: tuple[HostRule, ...] = ()
    private_nets: tuple[NetRule, ...] = ()
    limits: Limits = field(default_factory=Limits)
    hold_s: int = 0

    def view(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def decode(cls, view: dict[str, Any]) -> "Policy":
        """What `view` wrote, as JSON brings it back. Between parts of one program: raises whatever is wrong with it."""
        return cls(
            levels=tuple(
                Level(
                    name=level["name"],
                    is_open=level["is_open"],
                    hosts=_host_rules(level["hosts"]),
                    nets=_net_rules(level["nets"]),
                    registries=_host_rules(level["registries"]),
                )
                for level in view["levels"]
            ),
            private_hosts=_host_rules(view["private_hosts"]),
            private_nets=_net_rules(view["private_nets"]),
            limits=Limits(**view["limits"]),
            hold_s=view["hold_s"],
        )


@dataclass(frozen=True)
class Asked:
    """A request of plain HTTP."""

    method: str
    path: str  # with its query
    has_override: bool = False  # some servers would take another method or path for it, which a header says


@dataclass(frozen=True)
class Target:
    """What a guest wants to reach: a canonical name, or an address, at a port. `asked` is known of plain HTTP only."""

    port: int
    name: str | None = None
    address: Address | None = None
    asked: Asked | None = None

    def __str__(self) -> str:
        return f"{self.name or self.address}:{self.port}"


@dataclass(frozen=True)
class Allowed:
    rule: str  # of the last level: the sandbox's own


@dataclass(frozen=True)
class Refused:
    why: str  # for programs: one word
    told: str  # for people


Verdict = Allowed | Refused


def decide(policy: Policy, target: Target) -> Verdict:
    """Whether every level allows `target`. The rule is the last level's, which is the sandbox's own."""
    rule = None
    for level in policy.levels:
        rule = _rule(level, target)
        if rule is None:
            return Refused("policy", f"{target} is not allowed by the network policy of the {level.name}")
    if rule is None:
        return Refused("policy", f"{target} is not allowed: the network policy is deny")
    if target.address is not None:
        return decide_address(policy, target, target.address, rule)
    return Allowed(rule)


def decide_address(policy: Policy, target: Target, address: Address, rule: str) -> Verdict:
    """Whether a target that `rule` allows may be where its name leads. Names lead where their owners like.

    Guests are told what comes of this, and names of the host's network lead to addresses that are none of their
    business: none is said.
    """
    kind = kind_of(address)
    if kind is Kind.PRIVATE and not _may_be_private(policy, target, address):
        return Refused("private_address", f"{target} is at a private address")
    if kind is Kind.FORBIDDEN:
        return Refused("forbidden_address", f"{target} is at an address where no sandbox may go")
    if kind is Kind.PRIVATE and not all(_takes_private(level, target) for level in policy.levels):
        return Refused("private_address", f"{target} is at a private address, which has to be listed")
    return Allowed(rule)


def allows_nothing(policy: Policy) -> bool:
    """Whether there is nothing at all that a guest could say to be let through, now or later."""
    return not policy.levels or (not policy.hold_s and any(_is_empty(level) for level in policy.levels))


def may_ask(policy: Policy, name: str) -> bool:
    """Whether a guest may hear an address for `name`: some port of it is allowed, or somebody may allow it later."""
    if policy.hold_s and policy.levels:
        return True
    return bool(policy.levels) and all(
        level.is_open or any(matches(rule.host, name) for rule in (*level.hosts, *level.registries))
        for level in policy.levels
    )


def level(name: str, network: Network, registries: Iterable[HostRule]) -> Level:
    """What a policy stands for on a host that has these `registries`."""
    if network.policy is Mode.DENY:
        return Level(name)
    is_open = network.policy is Mode.OPEN
    has_registries = is_open or network.policy is Mode.REGISTRIES
    return Level(name, is_open, network.allow, network.allow_addresses, tuple(registries) if has_registries else ())


def _is_empty(level: Level) -> bool:
    return not (level.is_open or level.hosts or level.nets or level.registries)


def _rule(level: Level, target: Target) -> str | None:
    """The rule of this level that allows `target`, if there is one."""
    for rule in level.hosts:
        if _allows(rule, target):
            return str(rule)
    for rule in level.registries:
        if _allows(rule, target):
            return f"registries {rule}"
    if target.address is not None:
        for net in level.nets:
            if _is_in(net, target.address, target.port):
                return str(net)
    if level.is_open and target.port not in CLOSED_PORTS:
        return "open"
    return None


def _allows(rule: HostRule, target: Target) -> bool:
    if target.name is None or target.port not in rule.ports or not matches(rule.host, target.name):
        return False
    if not rule.methods and not rule.paths:
        return True
    if target.asked is None or target.asked.has_override:
        return False
    return _has_method(rule, target.asked.method) and _has_path(rule, target.asked.path)


def _has_method(rule: HostRule, method: str) -> bool:
    return not rule.methods or method in rule.methods


def _has_path(rule: HostRule, path: str) -> bool:
    """A path that could be read in two ways is none of those that are allowed."""
    if not rule.paths:
        return True
    bare = path.partition("?")[0]
    # Some servers take `..;x` for `..`.
    parts = [part.partition(";")[0] for part in bare.split("/")]
    if "%" in bare or "\\" in bare or "//" in bare or "." in parts or ".." in parts:
        return False
    return any(bare.startswith(each[:-1]) if each.endswith("*") else bare == each for each in rule.paths)


def _is_in(net: NetRule, address: Address, port: int) -> bool:
    return port == net.port and address.version == 4 and address in _network(net.cidr)


@lru_cache(maxsize=4096)
def _network(cidr: str) -> IPv4Network:
    """Reading one takes microseconds, and a policy has hundreds, for each of hundreds of connections."""
    return IPv4Network(cidr, strict=False)


def _may_be_private(policy: Policy, target: Target, address: Address) -> bool:
    """Whether the operator says that this is no secret of theirs."""
    return any(_allows(rule, target) for rule in policy.private_hosts) or any(
        _is_in(net, address, target.port) for net in policy.private_nets
    )


def _takes_private(level: Level, target: Target) -> bool:
    """`open` is for public addresses: what is private has to be meant."""
    if not level.is_open:
        return True
    rules = (*level.hosts, *level.registries)
    return any(_allows(rule, target) for rule in rules) or (
        target.address is not None and any(_is_in(net, target.address, target.port) for net in level.nets)
    )


def _host_rules(rows: list[dict[str, Any]]) -> tuple[HostRule, ...]:
    return tuple(HostRule(row["host"], tuple(row["ports"]), tuple(row["methods"]), tuple(row["paths"])) for row in rows)


def _net_rules(rows: list[dict[str, Any]]) -> tuple[NetRule, ...]:
    return tuple(NetRule(row["cidr"], row["port"]) for row in rows)
