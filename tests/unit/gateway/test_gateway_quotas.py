"""Which reservations are over, from what hosts say of their sandboxes."""

from hypothesis import given
from hypothesis import strategies as st

from contract.states import State
from gateway.quotas import ENDED, LATE_MS, over_ids

NOW_MS = 10_000_000
states = st.one_of(st.none(), st.sampled_from([state.value for state in State]))
answers = st.fixed_dictionaries(dict.fromkeys(("sb-a", "sb-b", "sb-c"), states))


def row(name: str, age_ms: int = 0) -> dict[str, object]:
    return {"id": name, "created_ms": NOW_MS - age_ms}


@given(st.lists(st.one_of(st.none(), answers), min_size=1), st.integers(0, 3 * LATE_MS))
def test_what_may_live_or_may_still_begin_is_never_released(
    said: list[dict[str, str | None] | None], age_ms: int
) -> None:
    rows = [row(name, age_ms) for name in ("sb-a", "sb-b", "sb-c")]
    over = over_ids(rows, said, now_ms=NOW_MS)
    for name in ("sb-a", "sb-b", "sb-c"):
        told = [states[name] for states in said if states is not None]
        known = [state for state in told if state is not None]
        lives = any(state not in ENDED for state in known)
        may_begin = not known and (age_ms <= LATE_MS or None in said)
        assert (name in over) == (not lives and not may_begin)


def test_a_paused_sandbox_counts() -> None:
    assert over_ids([row("sb-a")], [{"sb-a": "paused"}], now_ms=NOW_MS) == []


def test_one_that_ended_is_over_even_if_another_host_is_silent() -> None:
    assert over_ids([row("sb-a")], [{"sb-a": "stopped"}, None], now_ms=NOW_MS) == ["sb-a"]


def test_one_that_nobody_has_is_over_only_when_its_ticket_is() -> None:
    nobody = [{"sb-a": None}, {"sb-a": None}]
    assert over_ids([row("sb-a", LATE_MS)], nobody, now_ms=NOW_MS) == []
    assert over_ids([row("sb-a", LATE_MS + 1)], nobody, now_ms=NOW_MS) == ["sb-a"]
    assert over_ids([row("sb-a", LATE_MS + 1)], [*nobody, None], now_ms=NOW_MS) == []
