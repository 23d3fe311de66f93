"""When who may do what with a lease."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_made import BOOT, HOLD_MS, HOLD_NS, HOLDER, OTHER, host, lease, seen, taken

import poold.lease
from contract.ring import ranked
from poold.lease.terms import (
    DEAD_NS,
    HEIR_NS,
    STAGGER_NS,
    Begin,
    Carry,
    Heir,
    Mine,
    PassOn,
    Take,
    Terms,
    at_start,
    deference_ns,
    heir,
    is_alive,
    lapses_ns,
    left_by,
    living,
    may_go_on,
    plan,
    see,
    stagger_ns,
)
from poold.lease.written import MAX_HOLD_MS, MIN_HOLD_MS

TERMS = Terms(HOLD_NS)
RATES = st.floats(0.9167, 1.0833)  # of a clock that chronyd corrects as fast as it may
LIVING = {name: host(name) for name in "abcde"}


@given(st.integers(MIN_HOLD_MS, MAX_HOLD_MS), RATES, RATES, st.integers(0, 10**12))
def test_nothing_of_a_holder_runs_when_an_observer_may_take_its_lease(
    hold_ms: int, holders: float, observers: float, unseen_ns: int
) -> None:
    """In true time: the renewal was sent at 0, done at once, and seen `unseen_ns` later."""
    terms = Terms(hold_ms * 1_000_000)
    dead = (terms.kill_ns + DEAD_NS) / holders
    taken_at = unseen_ns + terms.take_ns / observers
    assert dead < taken_at


def test_a_holder_goes_on_until_its_time_is_over_and_no_longer() -> None:
    assert may_go_on(5, TERMS, 5 + HOLD_NS - 1)
    assert not may_go_on(5, TERMS, 5 + HOLD_NS)
    assert TERMS.renew_ns * 5 <= HOLD_NS < TERMS.kill_ns < TERMS.take_ns


def test_an_observer_counts_from_when_it_first_saw_the_lease_as_it_is() -> None:
    first = see(None, "1", lease(), 100)
    assert see(first, "1", lease(), 200) is first
    assert see(first, "2", lease(), 200).at_ns == 200


def test_a_held_lease_lapses_one_that_was_left_has_and_others_have_nothing_to_take() -> None:
    assert lapses_ns(seen(lease(), 7)) == 7 + TERMS.take_ns
    assert lapses_ns(seen(lease(has_left=True), 7)) == 7
    assert lapses_ns(seen(lease(root=0), 7)) is None
    assert lapses_ns(seen(lease(root=0, taken=(taken(),)), 7)) is None


def test_who_holds_a_lease_lives() -> None:
    assert is_alive(seen(lease()), TERMS.take_ns - 1)
    assert not is_alive(seen(lease()), TERMS.take_ns)
    assert not is_alive(seen(lease(has_left=True)), 0)
    assert living({"a": seen(lease()), "b": seen(lease("b", root=0))}, 1) == {"a": host("a")}


def test_the_first_of_the_ring_tries_first_and_no_two_at_once() -> None:
    ranking = ranked("a", {name: host(name).weight for name in "bcde"})
    waits = [stagger_ns("a", name, LIVING, 0.0) for name in ranking]
    assert waits == [rank * STAGGER_NS for rank in range(4)]
    assert all(0 <= stagger_ns("a", ranking[0], LIVING, jitter) < STAGGER_NS for jitter in (0.0, 0.5, 1.0))


def test_a_host_that_is_emptied_or_unseen_tries_last() -> None:
    others = {**LIVING, "b": host("b", draining=True)}
    assert stagger_ns("a", "b", others, 0.0) == 3 * STAGGER_NS
    assert stagger_ns("a", "z", LIVING, 0.0) == 4 * STAGGER_NS


@pytest.mark.parametrize(
    ("takers", "who"),
    [
        ({}, Heir.WAIT),  # nobody knows
        ({"b": lease("b", epoch=3, root=2)}, Heir.WAIT),  # seen before it took this, in epoch 4
        ({"b": lease("b", epoch=4, root=2)}, Heir.TAKER),
        ({"b": lease("b", epoch=6, root=2)}, Heir.TAKER),  # it went on with the same ledger
        ({"b": lease("b", epoch=4, root=2, has_left=True)}, Heir.TAKER),
        ({"b": lease("b", epoch=5, root=0, taken=(taken(2, 4, "c", 1),))}, Heir.WAIT),
        ({"b": lease("b", epoch=6, root=6, taken=(taken(2, 4, "c", 1),))}, Heir.WAIT),
        ({"b": lease("b", epoch=6, root=6, taken=(taken(2, 3, "c", 1),))}, Heir.ANYONE),
        ({"b": lease("b", epoch=6, root=6)}, Heir.ANYONE),
        ({"b": lease("b", epoch=5, root=0)}, Heir.ANYONE),
    ],
)
def test_who_is_to_carry_on_what_a_host_took(takers: dict[str, object], who: Heir) -> None:
    told = {name: seen(each) for name, each in takers.items()}  # type: ignore[arg-type]
    assert heir(taken(1, 1, "b", 4), told) is who


def test_a_lapsed_lease_is_tried_for_after_the_stagger() -> None:
    me = lease("b", epoch=1, root=1)
    told = {"a": seen(lease(), 0), "b": seen(me, TERMS.take_ns)}
    assert plan(me, told, TERMS.take_ns - 1) == []
    assert plan(me, told, TERMS.take_ns) == [Take(told["a"])]
    assert plan(me, told, TERMS.take_ns, jitter=1.0) == []


def test_nobody_takes_its_own_lease() -> None:
    me = lease("a")
    assert plan(me, {"a": seen(me)}, 10 * TERMS.take_ns) == []


def test_what_is_ours_to_carry_on_comes_first_also_after_we_went_on_with_our_ledger() -> None:
    me = lease("b", epoch=4, root=2)
    mine = taken(1, 1, "b", 3)
    told = {"a": seen(lease(epoch=5, root=0, taken=(mine,))), "b": seen(me), "c": seen(lease("c", has_left=True))}
    assert plan(me, told, 0) == [Carry("a", mine), Take(told["c"])]


def test_what_nobody_carries_on_is_anyones_after_the_stagger() -> None:
    me = lease("c", epoch=1, root=1)
    orphan = taken(1, 1, "b", 3)
    told = {"a": seen(lease(root=0, taken=(orphan,))), "b": seen(lease("b", epoch=4, root=0)), "c": seen(me)}
    assert plan(me, told, 0) == [PassOn(told["a"], orphan)]
    assert plan(me, told, 0, jitter=1.0) == []


def test_what_another_carries_on_is_left_alone() -> None:
    me = lease("c", epoch=1, root=1)
    told = {"a": seen(lease(root=0, taken=(taken(1, 1, "b", 3),))), "b": seen(lease("b")), "c": seen(me)}
    assert plan(me, told, TERMS.take_ns - 1) == []


def test_who_carries_a_host_on_gets_what_that_was_carrying_on() -> None:
    lost = taken(2, 4, "c", 1)
    own, older, others = taken(1, 1, "b", 3), taken(1, 1, "b", 1), taken(1, 1, "d", 3)
    told = {"a": seen(lease(root=0, taken=(own, older))), "e": seen(lease("e", root=0, taken=(others,)))}
    assert left_by("b", lost, told) == [PassOn(told["a"], own)]


# At a start.

MINE = Mine(HOLDER, BOOT, 2, held_epoch=3, held_until_ns=100)


@pytest.mark.parametrize(
    ("found", "mine", "lapsed", "begin"),
    [
        (None, Mine(HOLDER, BOOT, None), False, Begin.JOIN),
        (None, MINE, False, Begin.KEEP),
        (lease(), MINE, False, Begin.GO_ON),
        (lease(), Mine(HOLDER, BOOT, 2, 3, 50), False, Begin.KEEP),  # its time is over
        (lease(), Mine(HOLDER, BOOT, 2, 2, 100), False, Begin.KEEP),  # of another epoch
        (lease(), Mine(HOLDER, BOOT, 2), False, Begin.KEEP),
        (lease(has_left=True), MINE, False, Begin.KEEP),
        (lease(), Mine(HOLDER, BOOT, None, 3, 100), False, Begin.RESTORE),  # the ledger was not yet restored
        (lease(), Mine(HOLDER, "another", 2, 3, 100), False, None),  # after a reboot, or a copy elsewhere
        (lease(), Mine(HOLDER, "another", 2, 3, 100), True, Begin.KEEP),
        (lease(), Mine(OTHER, BOOT, 2, 3, 100), False, None),  # another's
        (lease(), Mine(OTHER, BOOT, 2, 3, 100), True, Begin.RESTORE),
        (lease(), Mine(OTHER, BOOT, None), True, Begin.RESTORE),
        (lease(has_left=True), Mine(OTHER, BOOT, None), False, Begin.RESTORE),
        (lease(root=0), MINE, False, Begin.REJOIN),
        (lease(root=0, taken=(taken(),)), MINE, False, Begin.REJOIN),
    ],
)
def test_how_a_poold_begins(found: object, mine: Mine, lapsed: bool, begin: Begin | None) -> None:
    assert at_start(found, mine, 50, has_lapsed=lapsed) is begin  # type: ignore[arg-type]


def test_the_usual_times_are_those_of_the_document() -> None:
    assert [each / 1e9 for each in (TERMS.renew_ns, TERMS.hold_ns, TERMS.kill_ns, TERMS.take_ns)] == [
        2.0,
        HOLD_MS / 1000,
        12.0,
        16.8,
    ]


def test_no_wall_clock_is_read_in_this_room() -> None:
    room = Path(poold.lease.__file__).parent
    readers = re.compile(r"time\.time|datetime|CLOCK_REALTIME|now_ms")
    assert [path.name for path in sorted(room.glob("*.py")) if readers.search(path.read_text())] == []


def test_an_heir_that_was_named_and_lives_tries_first_and_others_leave_it_to_it() -> None:
    left, me = lease("a", has_left=True, heir="c"), lease("b", epoch=1, root=1)
    present = {name: seen(lease(name, epoch=1, root=1), 0) for name in "bc"}
    told = {"a": seen(left, 0), **present}
    assert deference_ns(left, "c", LIVING, 1.0) == 0
    assert deference_ns(left, "b", LIVING, 0.0) == HEIR_NS + stagger_ns("a", "b", LIVING, 0.0)
    assert plan(lease("c", epoch=1, root=1), told, 0) == [Take(told["a"])]
    assert plan(me, told, 0) == []
    dead = {"a": seen(left, 0), "b": present["b"]}
    assert plan(me, dead, STAGGER_NS) == [Take(dead["a"])]
    emptied = {**LIVING, "c": host("c", draining=True)}
    assert deference_ns(left, "b", emptied, 0.0) == stagger_ns("a", "b", emptied, 0.0)
