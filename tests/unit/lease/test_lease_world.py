"""Whatever happens to hosts, clocks, processes and writes: nothing runs twice, is taken twice, or is lost.

Once as hypothesis likes, which finds the shortest way to a fault, and once by seeds, which get deeper.
"""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lease_world import HOLD_MS, World

from poold.lease.terms import MS

NODES = st.sampled_from("abc")
HOLD_NS = HOLD_MS * MS


class Worlds(RuleBasedStateMachine):
    """Any order of anything."""

    @initialize(rates=st.lists(st.sampled_from([0.92, 1.0, 1.08]), min_size=3, max_size=3))
    def begin_all(self, rates: list[float]) -> None:
        self.world = World(rates)
        for node in self.world.nodes.values():
            self.world.start(node)
            self.world.begin(node)
            self.world.arrive(0, is_heard=True)

    @rule(part=st.sampled_from([0.01, 0.3, 0.9, 1.1, 4, 7.5]))
    def time_passes(self, part: float) -> None:
        self.world.now += HOLD_NS * part

    @rule(name=NODES)
    def renew(self, name: str) -> None:
        self.world.renew(self.world.nodes[name])

    @rule(pick=st.integers(0, 9), is_heard=st.booleans())
    def a_write_arrives(self, pick: int, is_heard: bool) -> None:
        if self.world.sent:
            self.world.arrive(pick % len(self.world.sent), is_heard=is_heard)

    @rule(pick=st.integers(0, 9))
    def a_write_is_lost(self, pick: int) -> None:
        if self.world.sent:
            self.world.sent.pop(pick % len(self.world.sent))

    @rule()
    def all_is_well_for_a_moment(self) -> None:
        self.world.be_well()

    @rule(name=NODES, rounds=st.sampled_from([3, 30, 60]))
    def a_host_is_away(self, name: str, rounds: int) -> None:
        self.world.be_away(self.world.nodes[name], rounds)

    @rule(name=NODES)
    def start(self, name: str) -> None:
        node = self.world.nodes[name]
        self.world.start(node)
        self.world.begin(node)

    @rule(name=NODES)
    def kill(self, name: str) -> None:
        self.world.kill(self.world.nodes[name])

    @rule(name=NODES)
    def stop(self, name: str) -> None:
        poold = self.world.nodes[name].poold
        if poold is not None:
            poold.is_stopped = True

    @rule(name=NODES)
    def go_on(self, name: str) -> None:
        self.world.cont(self.world.nodes[name])

    @rule(name=NODES)
    def warden(self, name: str) -> None:
        self.world.warden(self.world.nodes[name])

    @rule(name=NODES)
    def reboot(self, name: str) -> None:
        self.world.reboot(self.world.nodes[name])

    @rule(name=NODES)
    def lose_disk(self, name: str) -> None:
        self.world.lose_disk(self.world.nodes[name])

    @rule(name=NODES, other=NODES)
    def look(self, name: str, other: str) -> None:
        self.world.look(self.world.nodes[name], other)

    @rule(name=NODES, steps=st.integers(1, 6))
    def act(self, name: str, steps: int) -> None:
        for _ in range(steps):
            self.world.act(self.world.nodes[name])

    @invariant()
    def nothing_runs_twice(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.settle()


Worlds.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestWorlds = Worlds.TestCase


# What may happen next, and how often beside the others.
STEPS = {
    "time": 6.0, "renew": 4.0, "arrive": 6.0, "lose": 1.0, "well": 4.0, "start": 4.0, "kill": 2.0, "stop": 2.0,
    "cont": 2.0, "warden": 2.0, "reboot": 0.5, "lose_disk": 0.3, "look": 4.0, "act": 6.0, "away": 1.5,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(0, 400, 100))
def test_a_hundred_walks_through_everything_that_can_go_wrong(seed: int) -> None:
    taken = sum(walk(random.Random(each)) for each in range(seed, seed + 100))
    assert taken > 20  # else this shows nothing


def walk(chance: random.Random) -> int:
    """How many leases were taken on the way."""
    world = World([chance.choice([0.92, 1.0, 1.08]) for _ in range(3)])
    for node in world.nodes.values():
        world.start(node)
    world.be_well()
    for _ in range(120):
        step(world, chance)
        world.check()
    world.settle()
    return len(world.takers)


def step(world: World, chance: random.Random) -> None:
    node = world.nodes[chance.choice("abc")]
    match chance.choices(list(STEPS), list(STEPS.values()))[0]:
        case "time":
            world.now += HOLD_NS * chance.choice([0.01, 0.3, 0.9, 1.1, 4, 7.5])
        case "arrive" if world.sent:
            world.arrive(chance.randrange(len(world.sent)), is_heard=chance.random() < 0.7)
        case "lose" if world.sent:
            world.sent.pop(chance.randrange(len(world.sent)))
        case "well":
            world.be_well()
        case "start":
            world.start(node)
            world.begin(node)
        case "stop" if node.poold is not None:
            node.poold.is_stopped = True
        case "look":
            world.look(node, chance.choice("abc"))
        case "act":
            for _ in range(chance.randint(1, 6)):
                world.act(node)
        case "away":
            world.be_away(node, chance.choice([3, 30, 60]))
        case "renew" | "kill" | "cont" | "warden" | "reboot" | "lose_disk" as name:
            getattr(world, name)(node)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_renewal_that_was_found_in_the_store_gives_no_more_time_than_its_reply_would_have(part: float) -> None:
    """The holder's clock is as slow as it may be and its taker's as fast, and that one saw the renewal at once."""
    world = World([0.92, 1.08])
    a, b = world.nodes.values()
    for node in (a, b):
        world.start(node)
    world.be_well()
    world.now += HOLD_NS * 0.05
    world.renew(a)
    world.arrive(0, is_heard=False)
    world.look(b, "a")
    world.renew(b)
    world.arrive(0, is_heard=True)
    world.now += HOLD_NS * part
    before = a.hold_ns
    world.renew(a)
    assert a.hold_ns > before  # it was found
    world.sent.clear()
    world.kill(a)  # its machines run on, until its warden's time
    while b.name not in world.takers.values():
        world.now += HOLD_NS / 100
        world.renew(b)
        world.arrive(0, is_heard=True)
        world.act(b)
        while world.sent:
            world.arrive(0, is_heard=True)
        world.look(b, "a")
    for _ in range(20):
        world.act(b)
        while world.sent:
            world.arrive(0, is_heard=True)
        world.check()
    assert ("a", 1) in b.runs  # it carries it on
