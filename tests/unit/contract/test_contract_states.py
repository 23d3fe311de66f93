"""The table of states: whole, closed, and with a way out of everything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import WrongState
from contract.states import FINAL, LIVE, TRANSITIONS, Event, State, step

states = st.sampled_from(list(State))
events = st.sampled_from(list(Event))


def reachable(start: State) -> set[State]:
    found, new = {start}, {start}
    while new:
        new = {state for known in new for state in TRANSITIONS[known].values()} - found
        found |= new
    return found


def test_every_state_has_a_row_and_every_target_is_a_state() -> None:
    assert set(TRANSITIONS) == set(State)
    assert {target for row in TRANSITIONS.values() for target in row.values()} <= set(State)


@given(states, events)
def test_a_step_follows_the_table_or_changes_nothing(state: State, event: Event) -> None:
    before = {known: dict(row) for known, row in TRANSITIONS.items()}
    try:
        after = step(state, event)
    except WrongState as error:
        assert event not in TRANSITIONS[state]
        told = error.body()["error"]
        assert (told["code"], told["state"], told["event"]) == ("wrong_state", state, event)
    else:
        assert after is TRANSITIONS[state][event]
    assert before == TRANSITIONS


@given(st.lists(events, max_size=30))
def test_no_sequence_of_events_leaves_the_table(sequence: list[Event]) -> None:
    state = State.PENDING
    for event in sequence:
        try:
            state = step(state, event)
        except WrongState:
            continue
        assert state in TRANSITIONS


def test_final_states_have_no_way_out() -> None:
    assert frozenset({State.STOPPED}) == FINAL
    for state in FINAL:
        for event in Event:
            with pytest.raises(WrongState):
                step(state, event)


@pytest.mark.parametrize("state", sorted(set(State) - FINAL))
def test_every_other_state_can_be_stopped_and_can_fail(state: State) -> None:
    assert step(state, Event.STOP) is State.STOPPED
    if state is not State.ERROR:
        assert step(state, Event.FAIL) is State.ERROR
        assert {State.STOPPED, State.ERROR} <= reachable(state)


def test_every_state_can_be_reached_from_the_first() -> None:
    assert reachable(State.PENDING) == set(State)


def test_nothing_that_is_over_is_live() -> None:
    assert not LIVE & (FINAL | {State.ERROR, State.PAUSED, State.HIBERNATED})
