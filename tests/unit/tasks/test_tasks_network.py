"""A task's sandbox reaches what the task cannot be done without, and nothing that was not asked for besides."""

import json

import pytest

from contract.errors import BadField
from contract.network import HostRule, LimitsAsked, Mode, NetRule, Network
from poold.tasks.network import task_network
from poold.tasks.repos import read_repo

CLAUDE = HostRule("api.anthropic.com", (443,))
FORGE = HostRule("forge.example.com", (443,))
REPO = read_repo("https://ann:pw@forge.example.com/a")


def network(asked: Network | None = None, **told: object) -> Network:
    return task_network(asked, **{"repo": None, "agent": "mock", "env": {}, **told})  # type: ignore[arg-type]


def test_a_task_that_needs_nothing_reaches_nothing() -> None:
    assert network() == Network(Mode.LIST)


def test_without_a_word_the_repository_and_the_agents_api_are_listed() -> None:
    assert network(repo=REPO, agent="claude") == Network(Mode.LIST, (CLAUDE, FORGE))
    assert network(agent="codex").allow == (HostRule("api.openai.com", (443,)),)
    assert {rule.host for rule in network(agent="cursor").allow} == {"api2.cursor.sh", "*.cursor.sh"}


def test_deny_by_name_stays_deny() -> None:
    asked = Network(Mode.DENY, limits=LimitsAsked(connections=3))
    assert network(asked, repo=REPO, agent="claude", asks_for_hosts=True) == asked


@pytest.mark.parametrize("mode", [Mode.LIST, Mode.REGISTRIES, Mode.OPEN])
def test_what_is_asked_for_is_kept_and_what_is_missing_is_added(mode: Mode) -> None:
    own, net = HostRule("own.example.com", (8080,)), NetRule("192.0.2.0/24", 22)
    asked = Network(mode, (own,), (net,), 7, LimitsAsked(up_mb=1))
    assert network(asked, repo=REPO) == Network(mode, (own, FORGE), (net,), 7, LimitsAsked(up_mb=1))


@pytest.mark.parametrize(
    ("listed", "is_enough"),
    [
        (HostRule("forge.example.com"), True),
        (HostRule("*.example.com", (443, 8443)), True),
        (HostRule("forge.example.com", (80,)), False),
        (HostRule("forge.example.com", (443,), methods=("GET",)), False),
        (HostRule("forge.example.com", (443,), paths=("/a",)), False),
        (HostRule("*.forge.example.com", (443,)), False),
    ],
)
def test_nothing_is_listed_twice(listed: HostRule, is_enough: bool) -> None:
    expected = (listed,) if is_enough else (listed, FORGE)
    assert network(Network(Mode.LIST, (listed,)), repo=REPO).allow == expected


def test_without_a_word_it_is_what_the_owner_usually_has_and_what_is_missing() -> None:
    assert network(usual=Network(Mode.REGISTRIES), agent="claude") == Network(Mode.REGISTRIES, (CLAUDE,))
    assert network(usual=Network(Mode.DENY), agent="claude") == Network(Mode.LIST, (CLAUDE,))
    assert network(Network(Mode.OPEN), usual=Network(Mode.REGISTRIES)).policy is Mode.OPEN


@pytest.mark.parametrize(("agent", "name"), [("claude", "ANTHROPIC_BASE_URL"), ("codex", "OPENAI_BASE_URL")])
def test_an_agent_whose_api_is_elsewhere_reaches_it_there_and_only_there(agent: str, name: str) -> None:
    found = network(agent=agent, env={name: "http://llm.example.com:8000/v1"})
    assert found == Network(Mode.LIST, (HostRule("llm.example.com", (8000,)),))
    numbers = network(agent=agent, env={name: "http://192.88.98.1:8000/v1"})
    assert numbers == Network(Mode.LIST, (), (NetRule("192.88.98.1/32", 8000),))
    assert network(agent="mock", env={name: "http://llm.example.com/"}) == Network(Mode.LIST)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8900", "http://localhost:8900/v1", "http://[::1]:1"])
def test_an_api_in_the_machine_itself_needs_no_network(url: str) -> None:
    assert network(agent="claude", env={"ANTHROPIC_BASE_URL": url}) == Network(Mode.LIST)


def test_a_bad_base_url_is_told_by_its_variable_without_its_password() -> None:
    with pytest.raises(BadField) as caught:
        network(agent="claude", env={"ANTHROPIC_BASE_URL": "https://a:hunter2@x y/"})
    assert caught.value.details["field"] == "env.ANTHROPIC_BASE_URL"
    assert "hunter2" not in str(caught.value.body())


def test_with_approvals_for_hosts_connections_wait_for_a_person() -> None:
    assert network(asks_for_hosts=True).hold_sec == 120
    assert network(Network(Mode.LIST, hold_sec=5), asks_for_hosts=True).hold_sec == 5
    assert network(Network(Mode.OPEN), asks_for_hosts=True).hold_sec == 120


def test_a_private_address_is_refused_unless_the_operator_allows_its_net() -> None:
    repo = read_repo("http://ann:hunter2@10.1.2.3:3000/a")
    with pytest.raises(BadField) as caught:
        network(repo=repo)
    assert caught.value.details == {"field": "repo", "value": "'http://10.1.2.3:3000/a'"}
    allowed = (NetRule("10.0.0.0/8", 3000),)
    assert network(repo=repo, private_nets=allowed).allow_addresses == (NetRule("10.1.2.3/32", 3000),)
    with pytest.raises(BadField):
        network(repo=repo, private_nets=(NetRule("10.0.0.0/8", 3001),))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "169.254.169.254", "0.0.0.0", "[::1]", "[2001:db8::1]", "224.0.0.1", "localhost", "a.localhost"],
)
def test_nobody_allows_what_is_forbidden(host: str) -> None:
    with pytest.raises(BadField, match="where nothing may go"):
        network(repo=read_repo(f"http://{host}/a"), private_nets=(NetRule("0.0.0.0/0", 80),))


def test_ipv6_by_numbers_is_refused_for_there_is_no_rule_for_it() -> None:
    with pytest.raises(BadField, match="must have a name"):
        network(repo=read_repo("http://[2600::1]/a"))


def test_the_policy_can_always_be_read_back() -> None:
    most = Network(Mode.LIST, tuple(HostRule(f"h{i}.example.com") for i in range(256)))
    with pytest.raises(BadField, match=r"network\.allow: must have at most 256"):
        network(most, repo=REPO)
    found = network(most, repo=read_repo("http://8.8.8.8/a"), asks_for_hosts=True)
    assert Network.decode(json.loads(json.dumps(found.view()))) == found
