"""What a sandbox may reach and what it tried to reach, by the client and by the command."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.conftest import LIMIT_S, Cli
from tests.sdk.sdk_replies import ID, KEY, ROW, sse
from tests.sdk.sdk_service import BARE, Service
from tests.sdk.sdk_stage import Asked, Stage, open_stage, refusal, reply, stream
from tests.terminal import open_screen
from warren import AsyncWarren, CallerError, Connection, HostRule, NetRule, Network, Reach, Warren, Within, WrongState

ROOT = Path(__file__).parents[2]
NOW_MS = time.time_ns() // 1_000_000
NOON = f"NON{NOW_MS // 3_600_000 % 24 - 12:+d}"  # a time zone in which it is that: what is of another day has a date
RULE = {"host": "example.com", "ports": [80, 443], "methods": [], "paths": []}
LIMITS = {"connections": 16, "connects_per_sec": None, "idle_sec": None, "up_mb": None, "down_mb": None}
LIST = {
    "policy": "list",
    "allow": [RULE],
    "allow_addresses": [{"cidr": "10.0.0.0/8", "port": 5432}],
    "hold_sec": 60,
    "limits": LIMITS,
    "from_the_future": True,
}
OPEN = {"policy": "open", "allow": [], "allow_addresses": [], "hold_sec": 0, "limits": {}}
ALLOWED = Network("list", (HostRule("example.com", (80, 443)),), (NetRule("10.0.0.0/8", 5432),), 60, LIMITS)


def row(seq: int, verdict: str = "allowed", **changed: Any) -> dict[str, Any]:
    told = {
        "seq": seq,
        "at_ms": NOW_MS,
        "verdict": verdict,
        "via": "tls",
        "name": "example.com",
        "address": "192.0.2.1",
        "port": 443,
        "rule": "example.com:80,443",
        "why": None,
        "up": 517,
        "down": 54_321_000,
        "duration_ms": 1530,
        "times": 1,
    }
    if verdict == "refused":
        told |= {"rule": None, "why": "private_address", "times": 3, "up": 0, "down": 0, "duration_ms": None}
    return {**told, **changed}


ROWS = [
    row(1),
    row(2, "refused", name="inner.example.com"),
    row(3, "refused", via="packet", name=None, address="192.0.2.53", port=53, why="udp", times=1),
    row(5, why="cut", name="a-long-name." * 4 + "example.com"),
]
NOW_OPEN = [{"at_ms": NOW_MS, "via": "connect", "name": "b.example.com", "address": None, "port": 443, "rule": "open"}]


class Gateway:
    """One sandbox, which has ended when it was looked at twice."""

    def __init__(self) -> None:
        self.later: list[dict[str, Any]] = [row(6, "refused"), row(7)]

    def __call__(self, asked: Asked) -> bytes:
        path, _, query = asked.target.partition("?")
        if path.endswith("/egress"):
            return self._egress(asked, query)
        if path.endswith("/exec"):
            return stream(sse("start", {"pid": 1}), sse("exit", {"exit_code": 0, "duration_ms": 1}), is_whole=True)
        if path.endswith("/events"):
            return reply(200, {"events": []})
        if path.endswith("/network") and asked.method == "GET":
            return reply(200, {"network": LIST, "within": [{"level": "host", "network": OPEN}]})
        return reply(200, {**ROW, "owner": "anna", "state": "stopped", "network": LIST})

    def _egress(self, asked: Asked, query: str) -> bytes:
        wanted = [each for each in (*ROWS, *self.later) if "refused" not in query or each["verdict"] == "refused"]
        if "event-stream" in asked.headers.get("accept", ""):
            after = int(asked.headers["last-event-id"])
            return stream(*(sse("row", each, each["seq"]) for each in wanted if each["seq"] > after), is_whole=True)
        after = int(re.findall(r"after=(\d+)", query)[0])
        rows = [each for each in wanted if each in ROWS and each["seq"] > after]
        return reply(200, {"rows": rows, "open": NOW_OPEN})


@pytest.fixture
def stage() -> Iterator[Stage]:
    with open_stage() as stage:
        stage.play(Gateway())
        yield stage


@pytest.fixture
def person(stage: Stage) -> dict[str, str]:
    return {"WARREN_URL": stage.url, "WARREN_API_KEY": KEY, "TZ": NOON}


# The client


def test_a_network_is_asked_for_as_a_value_or_as_the_api_has_it(stage: Stage) -> None:
    with Warren(stage.url, KEY) as warren:
        warren.create(network=Network(allow=[HostRule("example.com", paths=["/a/*"])], hold_sec=5))
        warren.create(network={"policy": "open"})
        made = warren.create()
        warren.keys.create("anna", network=Network("registries"))
    bodies = [json.loads(asked.body) for asked in stage.asked]
    allow = [{"host": "example.com", "ports": [], "methods": [], "paths": ["/a/*"]}]
    assert bodies[0] == {"network": {"allow": allow, "allow_addresses": [], "hold_sec": 5, "limits": {}}}
    assert bodies[1] == {"network": {"policy": "open"}}
    assert bodies[2] == {}
    assert bodies[3]["network"]["policy"] == "registries"
    assert made.info.network == ALLOWED


def test_what_it_may_reach_is_told_with_what_it_is_within(stage: Stage) -> None:
    with Warren(stage.url, KEY) as warren:
        assert warren.get(ID).network() == Reach(ALLOWED, (Within("host", Network("open", (), (), 0, {})),))


def test_a_change_is_the_whole_policy_and_is_known_then(stage: Stage) -> None:
    with Warren(stage.url, KEY) as warren:
        sandbox = warren.get(ID)
        assert sandbox.set_network({"policy": "deny"}).network == ALLOWED
        asked = stage.asked[-1]
        assert (asked.method, asked.target) == ("PUT", f"/v1/sandboxes/{ID}/network")
        assert json.loads(asked.body) == {"policy": "deny"}
        stage.play(refusal(409, "wrong_state"))
        with pytest.raises(WrongState):
            sandbox.set_network({})


def test_connections_are_followed_over_pages_and_breaks_each_once(stage: Stage) -> None:
    with Warren(stage.url, KEY) as warren:
        sandbox = warren.get(ID)
        assert [each.seq for each in sandbox.egress(follow=False)] == [1, 2, 3, 5]
        assert [each.seq for each in sandbox.egress(after=2)] == [3, 5, 6, 7]
        assert [each.seq for each in sandbox.egress(verdict="refused")] == [2, 3, 6]
        assert sandbox.open_connections() == [
            Connection(0, NOW_MS, "open", "connect", "b.example.com", None, 443, "open")
        ]
        broken = stream(sse("row", row(1), 1), sse("row", row(2), 2)[:-9], is_whole=False)
        stage.play(broken, Gateway())
        assert [each.seq for each in sandbox.egress()] == [1, 2, 3, 5, 6, 7]


async def test_asyncio_has_all_of_it(stage: Stage) -> None:
    async with AsyncWarren(stage.url, KEY) as warren:
        sandbox = await warren.create(network={"policy": "open"})
        assert (await sandbox.network()).network == ALLOWED
        assert (await sandbox.set_network(Network("deny"))).network == ALLOWED
        assert [each.seq async for each in sandbox.egress(after=3)] == [5, 6, 7]
        assert [each.seq async for each in sandbox.egress(follow=False, verdict="refused")] == [2, 3]
        assert [each.name for each in await sandbox.open_connections()] == ["b.example.com"]


def test_the_examples_of_the_document_run(stage: Stage) -> None:
    found = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs" / "SDK.md").read_text(), re.MULTILINE | re.DOTALL)
    blocks = [block for block in found if "Network" in block]
    assert len(blocks) == 1
    with Warren(stage.url, KEY) as warren:
        exec(compile(blocks[0], "SDK.md", "exec"), {"warren": warren})
    sent = {asked.method: json.loads(asked.body) for asked in stage.asked if asked.body}
    assert [rule["host"] for rule in sent["POST"]["network"]["allow"]] == ["example.com", "*.example.org"]
    assert sent["PUT"] == {"policy": "registries"}


def test_a_host_that_cannot_keep_a_policy_says_so(warren: Warren) -> None:
    """The hosts of these tests have the local engine, which isolates nothing."""
    with warren.create(network=Network("deny", hold_sec=7), env=BARE) as sandbox:
        assert sandbox.info.network is not None
        assert (sandbox.info.network.policy, sandbox.info.network.hold_sec) == ("deny", 7)
        assert [each.level for each in sandbox.network().within] == ["host"]
        with pytest.raises(CallerError, match="isolates nothing"):
            sandbox.set_network({"allow": [{"host": "example.com"}]})
        assert sandbox.set_network({}).network == Network("deny", limits=dict.fromkeys(LIMITS))
        assert [event.kind for event in sandbox.events(follow=False)][-1] == "network"
        sandbox.kill()
        assert [*sandbox.egress()] == []
        with pytest.raises(WrongState, match="stopped"):
            sandbox.set_network({})


def test_a_sandbox_is_within_the_policy_of_its_key(service: Service, warren: Warren) -> None:
    made = warren.keys.create("bert", network=Network("registries", [HostRule("example.com")]))
    assert made.key in warren.keys.list()
    with Warren(service.url, made.secret) as theirs, theirs.create(network={"policy": "deny"}, env=BARE) as sandbox:
        reach = sandbox.network()
        assert [(each.level, each.network.policy) for each in reach.within] == [("host", "open"), ("key", "registries")]
        assert reach.within[1].network == made.key.network


# The command


def test_the_commands_of_the_document_run(stage: Stage, environment: dict[str, str], tmp_path: Path) -> None:
    for name, module in (("warren", "warren.cli"), ("pooldctl", "poold.ctl")):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "registry").mkdir()
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "NETWORK.md").read_text(), re.MULTILINE | re.DOTALL)
    commands = "".join(blocks)
    assert commands.count("\n") > 15
    person = {
        **environment,
        "PATH": f"{tmp_path}:{environment['PATH']}",
        "PYTHONPATH": f"{ROOT}:{environment['PYTHONPATH']}",
        "POOLD_REGISTRY": str(tmp_path / "registry"),
        "WARREN_URL": stage.url,
        "WARREN_API_KEY": KEY,
    }
    argv = ["bash", "-c", f"set -eu\n{commands}"]
    done = subprocess.run(argv, env=person, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    sent = [json.loads(asked.body).get("network") for asked in stage.asked if asked.target == "/v1/sandboxes"]
    assert sent[0] == {"policy": "list", "allow": [{"host": "example.com"}, {"host": "*.example.org", "ports": [443]}]}


def test_a_sandbox_is_created_with_a_policy(cli: Cli, stage: Stage, person: dict[str, str]) -> None:
    words = ("--network", "registries", "--allow", "example.com", "--allow", "10.0.0.0/8:5432")
    assert cli("create", *words, **person).code == 0
    assert json.loads(stage.asked[-1].body)["network"] == {
        "policy": "registries",
        "allow": [{"host": "example.com"}],
        "allow_addresses": [{"cidr": "10.0.0.0/8", "port": 5432}],
    }
    assert cli("create", **person).code == 0
    assert json.loads(stage.asked[-1].body) == {}


def test_a_key_is_created_with_a_policy(cli: Cli, stage: Stage, person: dict[str, str]) -> None:
    stage.play(reply(201, {"id": "0" * 64, "owner": "anna", "network": LIST, "secret": KEY}))
    assert cli("keys", "create", "--owner", "anna", "--network", "open", **person).code == 0
    assert json.loads(stage.asked[-1].body)["network"] == {"policy": "open"}
    stage.play(reply(200, {"keys": [{"id": "0" * 64, "owner": "anna", "created_ms": 1, "network": LIST}]}))
    assert cli("keys", "ls", **person).out.splitlines()[1].endswith("list: example.com, 10.0.0.0/8:5432")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("create", "--allow", "https://example.com"),
            "argument --allow: nobody sees the method and the path of https",
        ),
        (("create", "--allow", "exa mple"), "must look like example.com, *.example.com, example.com:8443"),
        (("create", "--network", "closed"), "invalid choice: 'closed'"),
        (("create", "--network", "deny", "--allow", "example.com"), "deny allows nothing: --allow goes with"),
        (("network", ID, "--hold", "soon"), "must be a time like 90"),
    ],
)
def test_what_is_asked_wrongly_is_refused_before_anything_is_sent(
    cli: Cli, stage: Stage, person: dict[str, str], words: tuple[str, ...], said: str
) -> None:
    refused = cli(*words, **person)
    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err
    assert stage.asked == []


def test_the_network_of_a_sandbox_is_shown(cli: Cli, person: dict[str, str]) -> None:
    assert cli("network", ID, **person).out.splitlines() == [
        "OF       POLICY  ALLOWS",
        "sandbox  list    example.com",
        "                 10.0.0.0/8:5432",
        "                 at most 16 connections at a time",
        "                 anything else waits 1m for a change of this",
        "host     open    every public address",
        "                 the registries of the host",
    ]
    told = cli("network", ID, "--json", **person).json
    assert told["network"]["allow"] == [RULE]
    assert [each["level"] for each in told["within"]] == ["host"]
    got = cli("get", ID, **person).out
    assert re.search("^network +list: example.com, 10.0.0.0/8:5432$", got, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (("--policy", "deny"), {"policy": "deny"}),
        (("--allow", "example.com"), {"allow": [{"host": "example.com"}]}),
        (("--policy", "list", "--hold", "2m"), {"policy": "list", "hold_sec": 120}),
        (("--hold", "0"), {"hold_sec": 0}),
    ],
)
def test_the_network_of_a_sandbox_is_changed_as_a_whole(
    cli: Cli, stage: Stage, person: dict[str, str], words: tuple[str, ...], sent: dict[str, Any]
) -> None:
    changed = cli("network", ID, *words, **person)
    assert changed.code == 0, changed.err
    assert changed.out.startswith("OF       POLICY  ALLOWS\nsandbox  list")
    assert [json.loads(asked.body) for asked in stage.asked if asked.method == "PUT"] == [sent]


def test_connections_are_a_table_for_people(cli: Cli, person: dict[str, str]) -> None:
    lines = cli("egress", ID, **person).out.splitlines()
    cells = [re.split(" {2,}", line.strip()) for line in lines]
    assert cells[0] == ["TIME", "VERDICT", "VIA", "UP", "DOWN", "TOOK", "TARGET", "RULE OR WHY", "ADDRESS"]
    assert cells[1][1:] == [
        "allowed", "tls", "517 B", "54 MB", "1.5s", "example.com:443", "example.com:80,443", "192.0.2.1"
    ]  # fmt: skip
    assert cells[2][1:] == ["refused", "tls", "-", "-", "-", "inner.example.com:443", "private address ×3", "192.0.2.1"]
    assert cells[3][1:] == ["refused", "packet", "-", "-", "-", "192.0.2.53:53", "udp", "192.0.2.53"]
    assert cells[4][-2] == "example.com:80,443 (cut)"
    assert cells[5][1:] == ["open", "connect", "-", "-", "-", "b.example.com:443", "open", "-"]
    assert "\x1b" not in "".join(lines)


def test_only_those_that_were_refused_can_be_asked_for(cli: Cli, person: dict[str, str]) -> None:
    lines = cli("egress", ID, "--refused", **person).out.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["refused", "refused"]
    assert cli("egress", ID, "--refused", "--after", "3", **person).out.count("\n") == 1


def test_connections_are_followed_until_the_sandbox_has_ended(cli: Cli, person: dict[str, str]) -> None:
    lines = cli("egress", "-f", ID, **person).out.splitlines()
    verdicts = [line.split()[1] for line in lines[1:]]
    assert verdicts == ["allowed", "refused", "refused", "allowed", "open", "refused", "allowed"]


def test_programs_get_all_of_it_as_json(cli: Cli, person: dict[str, str]) -> None:
    told = cli("egress", ID, "--json", **person).json
    assert told["rows"] == ROWS
    assert [each["name"] for each in told["open"]] == ["b.example.com"]
    followed = [json.loads(line) for line in cli("egress", ID, "-f", "--json", **person).out.splitlines()]
    assert [each["seq"] for each in followed] == [1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("columns", [40, 80, 99, 100, 120, 200])
@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_a_table_of_connections_fits_the_terminal_and_refusals_stand_out(
    environment: dict[str, str], person: dict[str, str], columns: int, follow: tuple[str, ...]
) -> None:
    with open_screen(
        "warren.cli", "egress", *follow, ID, environment={**environment, **person}, columns=columns
    ) as screen:
        assert screen.ends() == 0
    shown = screen.shown.decode()
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.split("\r\n") if line]
    start = next(index for index, line in enumerate(lines) if line.startswith("TIME"))
    assert all(len(line) <= columns for line in lines[start:])
    for line in shown.split("\r\n"):
        assert ("refused" in line) == line.startswith("\x1b[31m")
    if columns >= 80:
        assert "RULE OR WHY" in lines[start]
        refused = [line for line in lines if " refused " in line and "192.0.2.53:53" not in line]
        assert [line for line in refused if "private address ×3" not in line] == []


def test_without_colours_nothing_is_coloured(environment: dict[str, str], person: dict[str, str]) -> None:
    plain = {**environment, **person, "NO_COLOR": "1"}
    with open_screen("warren.cli", "egress", ID, environment=plain, columns=100) as screen:
        assert screen.ends() == 0
    assert b"\x1b[31m" not in screen.shown
    assert b"\x1b[1m" not in screen.shown


def test_what_a_guest_made_up_is_harmless_on_a_terminal(cli: Cli, stage: Stage, person: dict[str, str]) -> None:
    evil = row(1, "refused", name="a\x1b[2Jb\nc", why="x\x1b]0;t\x07", via="\x9b31m")
    stage.play(reply(200, ROW), reply(200, {"rows": [evil], "open": []}), reply(200, {"rows": [], "open": []}))
    told = cli("egress", ID, **person)
    assert told.code == 0, told.err
    assert not set(told.out) & {"\x1b", "\x07", "\x9b"}
    assert told.out.count("\n") == 2


def test_options_and_policies_are_completed(cli: Cli) -> None:
    assert cli("__complete", "--", "net").out == "network\n"
    assert cli("__complete", "--", "create", "--network", "").out == "deny\nlist\nopen\nregistries\n"
    assert cli("__complete", "--", "network", "--po").out == "--policy\n"
