"""Sandboxes in the ledger: a move follows the table, and writes state, event, audit row and usage together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import NotFound, WrongState
from contract.models import Sandbox
from contract.states import TRANSITIONS, Event, State
from poold.ledger import sandboxes
from tests.unit.ledger.rows import box, memory


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
        after = None
        while page := sandboxes.listed(db, states=states, after=after, limit=limit):
            assert len(page) <= limit
            pages += page
            after = page[-1].id
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
            assert after.reason == (before.reason if reason is None else reason)
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
        assert sandboxes.listed(db, states=list(State), after="sb-nothing", limit=5) == []
