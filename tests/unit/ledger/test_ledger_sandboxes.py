"""Sandboxes in the ledger: a move follows the table, and writes state, event, audit row and usage together."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import NotFound, WrongState
from contract.models import Rules, RulesAsked, Sandbox
from contract.states import LIVE, TRANSITIONS, Event, State
from poold.ledger import audit, events, rules, sandboxes, usage
from poold.ledger.driver import sqlite3
from tests.unit.ledger.rows import box, count, memory


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(list(State))), max_size=25),
    st.integers(1, 7),
    st.sets(st.sampled_from(list(State)), min_size=1),
)
def test_pages_together_are_the_list_newest_first(
    rows: list[tuple[int, State]], limit: int, states: set[State]
) -> None:
    with memory() as db:
        made = [box(number, created_ms, state) for number, (created_ms, state) in enumerate(rows)]
        for sandbox in made:
            sandboxes.add(db, sandbox)
        pages: list[Sandbox] = []
        before = None
        while page := sandboxes.listed(db, states=states, before=before, limit=limit):
            assert len(page) <= limit
            pages += page
            before = page[-1].created_ms, page[-1].id
            # What is created meanwhile is newer, and moves nothing.
            sandboxes.add(db, box(1000 + len(pages) * 10 + limit, 10**6, State.RUNNING))
        wanted = [sandbox for sandbox in made if sandbox.state in states]
        assert [s.id for s in pages] == [s.id for s in sorted(wanted, key=lambda s: (s.created_ms, s.id), reverse=True)]


@given(st.lists(st.tuples(st.sampled_from(list(Event)), st.none() | st.text(max_size=5)), max_size=12))
def test_a_move_follows_the_table_and_keeps_the_times(events: list[tuple[Event, str | None]]) -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        before = sandboxes.get(db, box(1).id)
        for now_ms, (event, reason) in enumerate(events, 2000):
            try:
                after = sandboxes.move(db, before.id, event, now_ms=now_ms, reason=reason)
            except WrongState:
                assert event not in TRANSITIONS[before.state]
                assert sandboxes.get(db, before.id) == before  # a refused event changes nothing
                continue
            assert after == sandboxes.get(db, before.id)
            assert after.state is TRANSITIONS[before.state][event]
            kept = None if after.state is State.RUNNING else before.reason  # a reason ends when it runs
            assert after.reason == (kept if reason is None else reason)
            # The first start and the first end are kept.
            first_start = now_ms if after.state is State.RUNNING else None
            assert after.started_ms == (before.started_ms or first_start)
            first_end = now_ms if after.state in (State.STOPPED, State.ERROR) else None
            assert after.ended_ms == (before.ended_ms or first_end)
            assert (after.created_ms, after.expires_ms, after.shape) == (
                before.created_ms,
                before.expires_ms,
                before.shape,
            )
            before = after


def test_the_machine_stays_written_down() -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        sandboxes.move(db, box(1).id, Event.CLAIM, now_ms=1, machine="vm-1")
        assert sandboxes.move(db, box(1).id, Event.READY, now_ms=2).machine == "vm-1"


def test_what_is_not_there_is_not_found() -> None:
    with memory() as db:
        with pytest.raises(NotFound):
            sandboxes.get(db, "sb-nothing")
        with pytest.raises(NotFound):
            sandboxes.move(db, "sb-nothing", Event.STOP, now_ms=1)
        assert sandboxes.states(db, ["sb-nothing"]) == {"sb-nothing": None}
        with pytest.raises(NotFound):
            sandboxes.set_public(db, "sb-nothing", 80, public=True, now_ms=1)


moves = st.lists(st.sampled_from(list(Event)), max_size=20)


@given(moves)
def test_each_move_has_its_event_and_its_audit_row_and_a_refused_one_has_neither(asked: list[Event]) -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        done = []
        for now_ms, event in enumerate(asked, 2000):
            with contextlib.suppress(WrongState):
                sandboxes.move(db, box(1).id, event, now_ms=now_ms, reason="why", request="rq-1", detail={"n": now_ms})
                done.append((now_ms, event))
        stream = events.after(db, box(1).id, 0, 100)
        assert [event.seq for event in stream] == list(range(1, len(done) + 2))
        assert stream[0].kind == "created"
        assert [(event.at_ms, event.data["n"], event.data["reason"]) for event in stream[1:]] == [
            (now_ms, now_ms, "why") for now_ms, _ in done
        ]
        rows = audit.listed(db, sandbox=box(1).id, limit=100)
        assert [row.action for row in rows] == ["sandbox.create", *(f"sandbox.{event}" for _, event in done)]
        assert {row.request for row in rows[1:]} <= {"rq-1"}
        assert audit.verify(db).ok


@given(st.lists(st.sampled_from([*Event, None]), max_size=20))
def test_stopped_is_the_last_event_and_only_it_follows_an_error(asked: list[Event | None]) -> None:
    """None is something that a guest tells."""
    with memory() as db:
        sandboxes.add(db, box(1))
        wanted, told = ["created"], 0
        for now_ms, event in enumerate(asked, 2000):
            before = sandboxes.get(db, box(1).id).state
            if event is None:
                told += 1
                sandboxes.tell(db, box(1).id, "output", {}, at_ms=now_ms, guest_seq=told)
                wanted += [] if before in (State.STOPPED, State.ERROR) else ["output"]
            elif event in TRANSITIONS[before]:
                sandboxes.move(db, box(1).id, event, now_ms=now_ms)
                wanted.append("move")
        kinds = [event.kind for event in events.after(db, box(1).id, 0, 100)]
        assert len(kinds) == len(wanted)
        assert "stopped" not in kinds[:-1]
        assert "error" not in kinds or kinds[kinds.index("error") + 1 :] in ([], ["stopped"])


def test_of_a_sandbox_that_is_forgotten_nothing_is_told() -> None:
    with memory() as db:
        sandboxes.tell(db, "sb-nothing", "output", {}, at_ms=1, guest_seq=1)
        assert count(db, "events") == 0


@given(moves)
def test_what_was_used_is_the_time_in_running(asked: list[Event]) -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        ran_ms, runs, before = 0, 0, State.PENDING
        for now_ms, event in enumerate(asked, 2000):
            ran_ms += before is State.RUNNING  # each step takes a millisecond
            with contextlib.suppress(WrongState):
                before = sandboxes.move(db, box(1).id, event, now_ms=now_ms).state
                runs += before is State.RUNNING
        ran_ms += before is State.RUNNING
        totals = usage.totals(db, now_ms=2000 + len(asked))
        assert [(total.runs, total.vcpu_s) for total in totals] == ([(runs, ran_ms / 1000)] if runs else [])
        assert all(total.gib_s == pytest.approx(ran_ms / 4000) for total in totals)


def walk(db: sqlite3.Connection, *path: Event) -> Sandbox:
    """Apply the events, one each millisecond from 2001 on."""
    for now_ms, event in enumerate(path, 2001):
        sandbox = sandboxes.move(db, box(1).id, event, now_ms=now_ms, reason=event)
    return sandbox


def test_a_pause_begins_once_and_ends_when_it_runs() -> None:
    pause = (Event.CLAIM, Event.READY, Event.PAUSE)
    for path, paused_ms in {
        pause: 2003,
        (*pause, Event.RESUME): 2003,  # so that a start of the daemon knows that its memory is on disk
        (*pause, Event.RESUME, Event.PUT_BACK): 2003,
        (*pause, Event.HIBERNATE): 2003,
        (*pause, Event.RESUME, Event.READY): None,
        (*pause, Event.STOP): None,
        (*pause, Event.FAIL): None,
        (*pause, Event.RESUME, Event.READY, Event.PAUSE): 2006,
    }.items():
        with memory() as db:
            sandboxes.add(db, box(1))
            assert walk(db, *path).paused_ms == paused_ms, path


def test_the_stream_tells_a_first_start_from_a_resume() -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        walk(db, Event.CLAIM, Event.READY, Event.PAUSE, Event.RESUME, Event.READY, Event.FAIL, Event.STOP)
        kinds = [event.kind for event in events.after(db, box(1).id, 0, 100)]
        assert kinds == ["created", "starting", "running", "paused", "starting", "resumed", "error", "stopped"]


def test_all_that_was_asked_for_is_there_again() -> None:
    asked = replace(
        box(1), owner="ada", rules=Rules(60, "pause", idle_sec=5, paused_sec=6, auto_resume=True), generation=3
    )
    with memory() as db:
        sandboxes.add(db, asked)
        assert sandboxes.get(db, asked.id) == asked
        moved = sandboxes.move(db, asked.id, Event.CLAIM, now_ms=1, machine="vm-9", generation=4, expires_ms=77)
        assert (moved.machine, moved.generation, moved.expires_ms) == ("vm-9", 4, 77)


def test_a_new_end_of_time_is_told_and_noted() -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        changed = sandboxes.set_expiry(db, box(1).id, 9000, 7, 2000, request="rq-7")
        assert (changed.expires_ms, changed.rules.timeout_sec) == (9000, 7)
        assert events.after(db, box(1).id, 1, 9)[0].view()["data"] == {"expires_ms": 9000, "timeout_sec": 7}
        assert audit.listed(db, action="sandbox.timeout", limit=9)[0].request == "rq-7"


@pytest.mark.parametrize("end", [Event.STOP, Event.FAIL])
def test_a_sandbox_that_has_ended_gets_no_more_time(end: Event) -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        before = sandboxes.move(db, box(1).id, end, now_ms=1)
        with pytest.raises(WrongState, match=str(before.state)):
            sandboxes.set_expiry(db, box(1).id, 9000, 7, 2000)
        assert sandboxes.get(db, box(1).id) == before
        assert count(db, "events") == 2


def test_recovery_gets_all_that_may_have_a_machine_or_memory() -> None:
    with memory() as db:
        for number, state in enumerate(State):
            sandboxes.add(db, box(number, state=state))
        assert {sandbox.state for sandbox in sandboxes.alive(db)} == {*LIVE, State.PAUSED}
        assert sandboxes.count_by_state(db) == dict.fromkeys(State, 1)


def test_a_clock_that_is_put_back_makes_no_negative_use() -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        sandboxes.move(db, box(1).id, Event.CLAIM, now_ms=5000)
        sandboxes.move(db, box(1).id, Event.READY, now_ms=5000)
        assert usage.totals(db, now_ms=1)[0].vcpu_s == 0
        sandboxes.move(db, box(1).id, Event.STOP, now_ms=4000)
        assert usage.totals(db, now_ms=9000)[0].vcpu_s == 0


def test_egress_is_the_newest_runs_and_the_owners() -> None:
    with memory() as db:
        for number, owner in enumerate(("ada", "ada", "bob")):
            sandboxes.add(db, box(number, owner=owner))
            with pytest.raises(NotFound):
                usage.add_egress(db, box(number).id, 1)
            sandboxes.move(db, box(number).id, Event.CLAIM, now_ms=1)
            sandboxes.move(db, box(number).id, Event.READY, now_ms=1)
            usage.add_egress(db, box(number).id, 10)
        sandboxes.move(db, box(2).id, Event.PAUSE, now_ms=2)
        usage.add_egress(db, box(2).id, 7)
        sent = {total.owner: total.view()["egress_bytes"] for total in usage.totals(db, now_ms=5)}
        assert sent == {"ada": 20, "bob": 17}
        assert [total.owner for total in usage.totals(db, "bob", now_ms=5)] == ["bob"]


def test_the_rules_of_an_owner_are_replaced_as_a_whole() -> None:
    with memory() as db:
        assert rules.get(db, "ada") == RulesAsked()
        asked = RulesAsked(timeout_sec=5, on_timeout="pause", auto_resume=False)
        rules.put(db, "ada", asked, now_ms=1, request="rq-1")
        assert rules.get(db, "ada") == asked
        rules.put(db, "ada", RulesAsked(idle_sec=9), now_ms=2)
        assert rules.get(db, "ada") == RulesAsked(idle_sec=9)
        noted = audit.listed(db, owner="ada", action="owner.rules", limit=9)
        assert [(row.request, row.detail["timeout_sec"]) for row in noted] == [("rq-1", 5), (None, None)]
