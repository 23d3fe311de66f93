"""Attempts to get out of a real microVM, as root in it: all are refused at once, all are in the audit, and none leaks.

Each policy has a sandbox of its own. What is allowed is tried as well, by the same means: a proxy that is dead, or a
capture that is blind, would let every attempt pass.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.bench.host import Host
from tests.egress import (
    attempts_addresses,
    attempts_http,
    attempts_moved,
    attempts_names,
    attempts_packets,
    attempts_tls,
    inside,
)
from tests.egress.attempts import Attempt, Control, Outcome, Policy, Row, told
from tests.egress.baits import open_baits
from tests.egress.internet import Internet
from tests.egress.leaks import leaks
from tests.egress.world import World
from tests.egress.zone import ADDRESSES, ALIASES, FICKLE, SSH, WEB, WILD
from tests.vm.client import Api, Sandbox

AT_ONCE = 20  # in one program in the guest
LEAST = 60
AUDIT_S = 5.0
WEB_RULE = {"host": "web.example.com"}
AT_WEB = frozenset({(WEB, 80), (WEB, 443)})
WEB_ONLY = frozenset({"web.example.com"})
LISTED = [WEB_RULE, {"host": "*.w.example.com"}, {"host": "ssh.example.com", "ports": [22]}]
EVERYTHING = frozenset({*ADDRESSES, *ALIASES, *FICKLE})


def limited(**limits: int) -> Policy:
    return Policy({"allow": [WEB_RULE], "limits": limits}, AT_WEB, WEB_ONLY)


POLICIES = {
    "open": Policy({"policy": "open"}, attempts_addresses.REACH, EVERYTHING),
    "moved": Policy({"policy": "open"}, attempts_addresses.REACH, EVERYTHING),
    "listed": Policy(
        {"allow": LISTED},
        AT_WEB | {(WILD, 80), (WILD, 443), (SSH, 22)},
        frozenset({"web.example.com", "ssh.example.com", "a.w.example.com", "b.w.example.com"}),
    ),
    "paths": Policy(
        {"allow": [{**WEB_RULE, "methods": ["GET", "HEAD"], "paths": ["/public/*"]}]}, frozenset({(WEB, 80)}), WEB_ONLY
    ),
    "deny": Policy({}),
    "few": limited(connections=3),
    "slow": limited(connects_per_sec=3),
    "little": limited(down_mb=1),
    "little-up": limited(up_mb=1),
    "brief": limited(idle_sec=1),
}
MODULES = (attempts_addresses, attempts_packets, attempts_names, attempts_tls, attempts_http, attempts_moved)
ATTEMPTS: list[Attempt] = [each for module in MODULES for group in module.ALL for each in group()]
CONTROLS: list[Control] = [each for module in MODULES if hasattr(module, "controls") for each in module.controls()]


@dataclass(frozen=True)
class Batch:
    """All that was tried under one policy, and all that came of it."""

    outcomes: dict[str, Outcome]
    leaks: list[str]
    sandbox: Sandbox
    rows: list[dict[str, Any]] = field(default_factory=list)

    def more_rows(self) -> list[dict[str, Any]]:
        """The audit, as far as it is written by now."""
        while True:
            after = self.rows[-1]["seq"] if self.rows else 0
            reply = self.sandbox.api.call("GET", f"{self.sandbox.path}/egress?after={after}&limit=1000")
            assert reply.status == 200, reply
            if not reply.json["rows"]:
                return self.rows
            self.rows.extend(reply.json["rows"])

    def has(self, row: Row, outcome: Outcome) -> bool:
        """Whether the audit has this row; it is written a little later than the guest is told."""
        give_up = time.monotonic() + AUDIT_S
        while not row.is_seen_in(self.more_rows(), outcome.at_ms, outcome.end_ms):
            if time.monotonic() > give_up:
                return False
            time.sleep(0.1)
        return True

    def near(self, outcome: Outcome) -> list[str]:
        return [str(row) for row in self.rows if outcome.at_ms - 500 < row["at_ms"] < outcome.end_ms + 1500]


Batches = Callable[[str], Batch]


@pytest.fixture(scope="module")
def baits(world: World) -> Iterator[list[str]]:
    with open_baits(world.host) as came:
        yield came


@pytest.fixture(scope="module")
def batches(api: Api, host: Host, world: World, internet: Internet, baits: list[str]) -> Iterator[Batches]:
    """What was tried under a policy; it is tried when it is asked for first."""
    sandboxes: list[Sandbox] = []

    @cache
    def batch(policy: str) -> Batch:
        sandbox = api.create(image="minimal", network=POLICIES[policy].network)
        sandboxes.append(sandbox)
        packets, hits, asked = world.arrived.mark(), internet.web.mark(), len(internet.zone.asked)
        internet.zone.begin_again()
        outcomes = tried(sandbox, [each for each in (*CONTROLS, *ATTEMPTS) if each.policy == policy])
        seen = world.arrived.since(packets)
        found = leaks(POLICIES[policy], seen, internet.web.since(hits), internet.zone.asked[asked:])
        return Batch(outcomes, [*found, *(f"to the host: {one}" for one in baits)], sandbox)

    yield batch
    for sandbox in sandboxes:
        sandbox.destroy()


def tried(sandbox: Sandbox, every: list[Attempt | Control]) -> dict[str, Outcome]:
    """What the program in the guest says of each."""
    sandbox.put("/root/inside.py", Path(inside.__file__).read_bytes(), user="root")
    outcomes = {}
    for at in range(0, len(every), AT_ONCE):
        sandbox.put("/root/told.json", told(every[at : at + AT_ONCE]), user="root")
        done = sandbox.run(["python3", "/root/inside.py", "/root/told.json"], user="root", timeout_sec=120)
        assert done["exit_code"] == 0, done
        outcomes.update({name: Outcome(**outcome) for name, outcome in json.loads(done["stdout"]).items()})
    return outcomes


def troubles(host: Host) -> str:
    """What poold said that it would not say on a good day."""
    return "\n".join(line for line in host.log().splitlines() if '"level":"info"' not in line)[-2000:]


def test_there_are_enough_attempts_and_each_has_a_name_of_its_own() -> None:
    names = [each.name for each in (*ATTEMPTS, *CONTROLS)]
    assert len(ATTEMPTS) >= LEAST
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_what_is_allowed_works(batches: Batches, control: Control) -> None:
    outcome = batches(control.policy).outcomes[control.name]
    assert control.heard in outcome.heard, outcome


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_an_attempt_is_refused_at_once_and_is_in_the_audit(batches: Batches, attempt: Attempt) -> None:
    batch = batches(attempt.policy)
    outcome = batch.outcomes[attempt.name]
    assert attempt.problem(outcome) is None, outcome
    if attempt.row is not None:
        assert batch.has(attempt.row, outcome), (outcome, batch.near(outcome))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_audit_counts_every_attempt(batches: Batches, host: Host, policy: str) -> None:
    seen = sum(row["times"] for row in batches(policy).more_rows() if row["why"])
    assert seen >= sum(each.policy == policy and each.row is not None for each in ATTEMPTS), troubles(host)


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_left_the_host_that_the_policy_forbids(batches: Batches, policy: str) -> None:
    assert batches(policy).leaks == []
