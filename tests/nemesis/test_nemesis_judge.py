"""The judge of the nemesis: it finds nothing wrong with what is right, and each thing that could be wrong."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.nemesis import judge
from tests.nemesis.boxes import Box
from tests.nemesis.effects import Attempt
from tests.nemesis.faults import Killed
from tests.nemesis.judge import Facts
from tests.nemesis.leases import Leases, Written
from tests.nemesis.load import Followed, Heard

TASK, BOX, KEPT = "tk-aaaaaaaaaaaaaaaa", "sb-aaaaaaaaaaaaaaaa", "sb-bbbbbbbbbbbbbbbb"
LOST = {"state": "error", "reason": "host_lost: host h1 is gone"}
EVENTS = [{"seq": 1, "kind": "task.created"}, {"seq": 2, "kind": "task.completed"}]


def written(at: float, epoch: int, root: int, holder: str = "a", taken: tuple[Any, ...] = ()) -> Written:
    return Written(at, "h1", epoch, root, holder, int(at), taken)


def right() -> Facts:
    """One task, whose host was taken over at 3 and came back at 5."""
    heard = [Heard(1.0 + number, dict(event)) for number, event in enumerate(EVENTS)]
    task = Followed("t0-1", TASK, {"t0-1-0": "by t0-1"}, ("Part 0",), heard)
    result = {"commits": [{"subject": "Part 0"}]}
    return Facts(
        tasks=[task],
        sandboxes=[Box(BOX, "m", is_marked=True, is_destroyed=True), Box(KEPT, "m", last=dict(LOST))],
        box_views={BOX: {"state": "stopped"}, KEPT: {"state": "stopped"}},
        views={TASK: {"state": "completed", "result": result}},
        pages={TASK: [dict(event) for event in EVENTS]},
        attempts=[Attempt(2.0, "t0-1-0", "by t0-1", "10.0.0.1", True), Attempt(4.0, "t0-1-0", "", "10.0.0.2", False)],
        made={"t0-1-0": "by t0-1"},
        leases=[written(1, 1, 1), written(3, 2, 0, taken=((1, 1, "h2", 1),)), written(5, 3, 3)],
        addresses={"h1": "10.0.0.1"},
        homes={TASK: ["h2"], BOX: ["h1"], KEPT: ["h2"]},
        keys={"t0-1": [TASK]},
        ledgers={"h1": []},
        machines={"h1": 0},
    )


def test_nothing_is_wrong_with_what_is_right() -> None:
    assert judge.wrong(right()) == []


def failed(facts: Facts) -> None:
    facts.views = {TASK: {"state": "failed", "reason": "x"}}


def gone(facts: Facts) -> None:
    facts.views = {}


def committed_twice(facts: Facts) -> None:
    facts.views = {TASK: {"state": "completed", "result": {"commits": [{"subject": "Part 0"}] * 2}}}


def ended_twice(facts: Facts) -> None:
    facts.pages = {TASK: [*EVENTS, {"seq": 3, "kind": "task.completed"}]}


def a_gap(facts: Facts) -> None:
    facts.pages = {TASK: [EVENTS[0], {**EVENTS[1], "seq": 3}]}


def another_event(facts: Facts) -> None:
    facts.pages = {TASK: [{**EVENTS[0], "kind": "task.planning"}, EVENTS[1]]}


def unheard_event(facts: Facts) -> None:
    facts.tasks[0].heard.pop()


def told_wrong(facts: Facts) -> None:
    facts.tasks[0].wrong.append("event 1 came after 1")


def no_effect(facts: Facts) -> None:
    facts.attempts = ()


def effect_of_another(facts: Facts) -> None:
    facts.made = {"t0-1-0": "by t0-2"}


def two_effects(facts: Facts) -> None:
    facts.attempts = [*facts.attempts, replace(facts.attempts[0])]


def a_box_gone(facts: Facts) -> None:
    facts.box_views = {KEPT: {"state": "stopped"}}


def a_box_back(facts: Facts) -> None:
    facts.box_views = {**facts.box_views, BOX: {"state": "running"}}


def a_wrong_mark(facts: Facts) -> None:
    facts.sandboxes[0].wrong.append("its mark was 'm' and is (0, '')")


def a_silent_loss(facts: Facts) -> None:
    facts.sandboxes[1].last = {"state": "error", "reason": None}


def a_sleeper_lost(facts: Facts) -> None:
    facts.sandboxes[1].is_asleep = True


def two_homes(facts: Facts) -> None:
    facts.homes = {**facts.homes, TASK: ["h1", "h2"]}


def no_home(facts: Facts) -> None:
    facts.homes = {TASK: ["h2"]}


def two_tasks_of_one_key(facts: Facts) -> None:
    facts.keys = {"t0-1": [TASK, "tk-b"]}


def two_holders(facts: Facts) -> None:
    facts.leases = [*facts.leases, written(6, 3, 3, "b")]


def an_epoch_again(facts: Facts) -> None:
    facts.leases = [*facts.leases, written(6, 2, 2)]


def two_takers(facts: Facts) -> None:
    facts.leases = [*facts.leases, written(6, 4, 0, taken=((1, 1, "h2", 1), (1, 1, "h3", 1)))]


def a_zombie(facts: Facts) -> None:
    facts.attempts = [*facts.attempts, Attempt(4.5, "t0-1-0", "", "10.0.0.1", False)]


def a_damaged_ledger(facts: Facts) -> None:
    facts.ledgers = {"h1": ["the file is damaged"]}


def a_machine_left(facts: Facts) -> None:
    facts.machines = {"h1": 1}


WRONGS = {
    judge.unfinished: (failed, gone, committed_twice, ended_twice),
    judge.streams: (a_gap, another_event, unheard_event, told_wrong),
    judge.effects: (no_effect, effect_of_another, two_effects),
    judge.sandboxes: (a_box_gone, a_box_back, a_wrong_mark, a_silent_loss, a_sleeper_lost),
    judge.one_home: (two_homes, no_home, two_tasks_of_one_key),
    judge.epochs: (two_holders, an_epoch_again, two_takers),
    judge.fenced: (a_zombie,),
    judge.ledgers: (a_damaged_ledger,),
    judge.machines: (a_machine_left,),
}


@pytest.mark.parametrize(
    ("question", "spoil"), [(question, spoil) for question, spoils in WRONGS.items() for spoil in spoils]
)
def test_whatever_is_wrong_is_found(question: Callable[[Facts], list[str]], spoil: Callable[[Facts], None]) -> None:
    facts = right()
    spoil(facts)
    assert question(facts)


def test_the_wait_is_counted_to_the_first_event_that_was_not_on_its_way() -> None:
    task = Followed("t", TASK, {}, (), [Heard(at, {}) for at in (9.0, 10.1, 14.0, 15.0)])
    assert judge.waits_s([Killed(10.0, "h1", (TASK, "tk-of-nobody"))], [task]) == [4.0]


def test_quantiles_are_of_what_there_is() -> None:
    assert judge.quantile([], 0.5) == 0.0
    assert judge.quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert judge.quantile([1.0, 2.0, 3.0], 0.99) == 3.0


def test_only_accepted_writes_to_leases_count() -> None:
    leases = Leases()
    body = b'{"epoch": 2, "root": 1, "holder": "a", "beat": 3, "taken": []}'
    leases.put("/warren/nemesis/leases/h1", body, 412)
    leases.put("/warren/nemesis/ledger/h1/1/x", b"", 200)
    leases.put("/warren/nemesis/leases/h1", body, 200)
    assert [(each.host, each.epoch, each.root) for each in leases.written] == [("h1", 2, 1)]
