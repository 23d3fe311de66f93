"""What the sandbox of a task may reach: what was asked for, and what the task cannot be done without. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from contract.errors import BadField
from contract.network import MAX_RULES, HostRule, Mode, NetRule, Network
from poold.egress.addresses import Kind, kind_of
from poold.egress.names import matches
from poold.egress.policy import Policy, Refused, Target, decide_address
from poold.tasks.repos import FIELD, Repo
from poold.tasks.urls import Url, read_url, redacted

HOLD_S = 120  # for so long a connection waits for a person
HTTPS = (443,)
# Where each agent's API is, and the variable that says otherwise.
API_HOSTS: Mapping[str, tuple[HostRule, ...]] = {
    "claude": (HostRule("api.anthropic.com", HTTPS),),
    "codex": (HostRule("api.openai.com", HTTPS),),
    "cursor": (HostRule("api2.cursor.sh", HTTPS), HostRule("*.cursor.sh", HTTPS)),
}
BASE_URLS: Mapping[str, str] = {"claude": "ANTHROPIC_BASE_URL", "codex": "OPENAI_BASE_URL"}


def task_network(
    asked: Network | None,
    *,
    repo: Repo | None,
    agent: str,
    env: Mapping[str, str],
    asks_for_hosts: bool = False,
    usual: Network | None = None,
    private_nets: tuple[NetRule, ...] = (),
) -> Network:
    """The policy of a task's sandbox.

    `deny` that was asked for stays what it is. `usual` is what a sandbox of this owner and image has for which nothing
    is asked. Raises `BadField` for an address where no sandbox of this host may go.
    """
    if asked is not None and asked.policy is Mode.DENY:
        return asked
    base = asked if asked is not None else usual
    if base is None or base.policy is Mode.DENY:
        # A key or an image that denies is asked on every connection, and goes on to do so.
        base = Network(Mode.LIST)
    hosts, nets = _needed(repo, agent, env, private_nets)
    network = replace(
        base,
        allow=(*base.allow, *(rule for rule in hosts if not _has(base, rule))),
        allow_addresses=tuple(dict.fromkeys((*base.allow_addresses, *nets))),
        hold_sec=(base.hold_sec or HOLD_S) if asks_for_hosts else base.hold_sec,
    )
    _check_length(network)
    return network


def check_reachable(place: Url, shown: str, name: str, private_nets: tuple[NetRule, ...]) -> None:
    """Raises `BadField` for what is written in numbers of a place where nothing may go. A name is looked at later."""
    if place.host == "localhost" or place.host.endswith(".localhost"):
        raise BadField(name, shown, "is at an address where nothing may go")
    if place.address is None:
        return
    target = Target(place.port, address=place.address)
    verdict = decide_address(Policy(private_nets=private_nets), target, place.address, "")
    if isinstance(verdict, Refused):
        kind = "a private address" if kind_of(place.address) is Kind.PRIVATE else "an address where nothing may go"
        raise BadField(name, shown, f"is at {kind}")


def _needed(
    repo: Repo | None, agent: str, env: Mapping[str, str], private_nets: tuple[NetRule, ...]
) -> tuple[list[HostRule], list[NetRule]]:
    places = list(_places(repo, agent, env))
    for name, place, shown in places:
        check_reachable(place, shown, name, private_nets)
        if place.address is not None and place.address.version == 6:
            raise BadField(name, shown, "must have a name: addresses of IPv6 are not reached by their numbers")
    hosts = [] if _base_url(agent, env) else list(API_HOSTS.get(agent, ()))
    hosts += [HostRule(place.host, (place.port,)) for _, place, _ in places if place.address is None]
    nets = [NetRule(f"{place.address}/32", place.port) for _, place, _ in places if place.address is not None]
    return hosts, nets


def _places(repo: Repo | None, agent: str, env: Mapping[str, str]) -> Iterator[tuple[str, Url, str]]:
    """By the name of the field that says so, and as it may be shown."""
    if repo is not None:
        yield FIELD, repo.place, repo.url
    if text := _base_url(agent, env):
        name = f"env.{BASE_URLS[agent]}"
        place = read_url(text, name)
        if not _is_in_the_machine(place):
            yield name, place, redacted(text)


def _is_in_the_machine(place: Url) -> bool:
    """What an agent reaches without a network: its own loopback, and not ours."""
    return place.host == "localhost" or (place.address is not None and place.address.is_loopback)


def _base_url(agent: str, env: Mapping[str, str]) -> str | None:
    return env.get(BASE_URLS.get(agent, "")) or None


def _has(network: Network, wanted: HostRule) -> bool:
    """Whether some rule says as much. One for some methods or paths says less."""
    return any(
        (rule.host == wanted.host or (not wanted.host.startswith("*") and matches(rule.host, wanted.host)))
        and set(rule.ports) >= set(wanted.ports)
        and not rule.methods
        and not rule.paths
        for rule in network.allow
    )


def _check_length(network: Network) -> None:
    """What is written down is read back by the rules for requests."""
    for name in ("allow", "allow_addresses"):
        count = len(getattr(network, name))
        if count > MAX_RULES:
            problem = f"must have at most {MAX_RULES} rules, with those that the task needs"
            raise BadField(f"network.{name}", count, problem)
