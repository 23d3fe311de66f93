"""What an agent's events come to, whatever a guest tells; and when a task may not go on."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.tasks import Approvals, Caps, Loop
from poold.link import GuestEvent
from poold.tasks.judge import Capped, Looping, judge, looping, over_caps, spending
from poold.tasks.progress import KEPT_BYTES, MAX_DIFFS, TOLD, Progress, read

NO_CAPS = Caps(steps=None, wall_sec=10**6, output_bytes=1 << 40)

json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**63) | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
names = st.sampled_from(
    (
        *("id", "kind", "text", "tool", "arguments", "phase", "call", "is_error", "command", "output", "output_bytes"),
        *("file", "usd", "input_tokens", "output_tokens", "hash", "outcome", "error", "result", "session", "model"),
    )
)
sensible = st.sampled_from(["start", "end", "command", "ap-1", "success", "a", True, 1, 0.5])
told = st.tuples(
    st.sampled_from(sorted(TOLD)) | st.sampled_from(["task.completed", "x", "agent.other"]),
    st.dictionaries(names, json | sensible, max_size=8),
)


def numbered(events: list[tuple[str, dict[str, Any]]], first: int = 1) -> list[GuestEvent]:
    return [GuestEvent(first + place, kind, data) for place, (kind, data) in enumerate(events)]


def reading(events: list[tuple[str, dict[str, Any]]], before: Progress | None = None) -> Progress:
    return read(before or Progress(), numbered(events), at_ms=1, price=lambda *_: None)[0]


def tool(phase: str, call: str = "c", **more: Any) -> tuple[str, dict[str, Any]]:
    return "agent.tool", {"phase": phase, "call": call, "tool": "Bash", "kind": "command", **more}


def usable(data: dict[str, Any]) -> bool:
    """Whether a guest could have sent it: only what can be written as JSON again comes through the link."""
    try:
        orjson.dumps(data)
    except (TypeError, ValueError):
        return False
    return True


@given(st.lists(told.filter(lambda event: usable(event[1])), max_size=30))
def test_whatever_a_guest_tells_is_bounded_and_can_be_written_down_and_read_again(
    events: list[tuple[str, dict[str, Any]]],
) -> None:
    after, changes = read(Progress(), numbered(events), at_ms=5, price=lambda *_: None)
    assert Progress.decode(orjson.loads(orjson.dumps(after.encode()))) == after
    assert [step.number for step in changes.begun] == list(range(1, after.steps + 1))
    assert {each.kind for each in changes.told} <= TOLD
    assert all(len(orjson.dumps(each.data)) <= 2 * KEPT_BYTES for each in changes.told)
    assert {step.number for step in changes.ended} <= {step.number for step in changes.begun}
    usage = after.usage
    assert min(usage.input_tokens, usage.output_tokens, usage.output_bytes) >= 0


@given(st.lists(told.filter(lambda event: usable(event[1])), max_size=20), st.data())
def test_a_stream_that_is_read_in_pieces_and_from_before_comes_to_the_same(
    events: list[tuple[str, dict[str, Any]]], data: st.DataObject
) -> None:
    whole, all_at_once = read(Progress(), numbered(events), at_ms=5, price=lambda *_: None)
    cut = data.draw(st.integers(0, len(events)))
    back = data.draw(st.integers(0, cut))
    half, first = read(Progress(), numbered(events[:cut]), at_ms=5, price=lambda *_: None)
    half = Progress.decode(orjson.loads(orjson.dumps(half.encode())))
    rest, second = read(half, numbered(events[back:], back + 1), at_ms=5, price=lambda *_: None)
    assert rest == whole
    assert first.told + second.told == all_at_once.told
    assert first.begun + second.begun == all_at_once.begun


def test_a_call_of_a_tool_is_a_step_with_the_thought_before_it() -> None:
    events = [("agent.thought", {"text": "hm"}), tool("start", arguments={"command": "ls"}), tool("end", output="a")]
    _, changes = read(Progress(), numbered(events), at_ms=7, price=lambda *_: None)
    assert [(step.number, step.thought, step.tool) for step in changes.begun] == [(1, "hm", "Bash")]
    assert [(step.number, step.output) for step in changes.ended] == [(1, "a")]


def test_messages_without_a_tool_are_steps_of_their_own() -> None:
    events = [("agent.message", {"text": str(number)}) for number in range(3)] + [
        ("agent.ended", {"outcome": "success"})
    ]
    _, changes = read(Progress(), numbered(events), at_ms=7, price=lambda *_: None)
    assert [step.thought for step in changes.begun] == ["0", "1", "2"]


def test_calls_side_by_side_end_as_what_they_were() -> None:
    events = [tool("start", "a"), tool("start", "b"), tool("end", "a", output="A"), tool("end", "b", output="B")]
    _, changes = read(Progress(), numbered(events), at_ms=7, price=lambda *_: None)
    assert [(step.number, step.output) for step in changes.ended] == [(1, "A"), (2, "B")]


def test_nothing_is_unspent_and_what_is_new_belongs_to_the_newest_step() -> None:
    events = [
        tool("start"),
        ("agent.usage", {"input_tokens": 10, "output_tokens": 5, "usd": 0.5}),
        tool("end"),
        tool("start"),
        ("agent.usage", {"input_tokens": 4, "output_tokens": 7, "usd": 0.1}),
    ]
    after, changes = read(Progress(), numbered(events), at_ms=7, price=lambda *_: None)
    assert (after.usage.input_tokens, after.usage.output_tokens, after.usage.usd) == (10, 7, 0.5)
    assert [(spent.number, spent.input_tokens, spent.output_tokens) for spent in changes.spent] == [
        (1, 10, 5),
        (2, 0, 2),
    ]


def test_what_an_agent_does_not_say_is_estimated_and_what_it_says_counts_more() -> None:
    events = [("agent.started", {"model": "m"}), ("agent.usage", {"input_tokens": 1000})]
    after, _ = read(Progress(), numbered(events), at_ms=7, price=lambda model, used: 2.0 if model == "m" else None)
    assert (after.usage.usd, after.usage.usd_is_estimate) == (2.0, True)
    more = numbered([("agent.usage", {"input_tokens": 1000, "usd": 3.0})], 3)
    after, _ = read(after, more, at_ms=7, price=lambda *_: 9.0)
    assert (after.usage.usd, after.usage.usd_is_estimate) == (3.0, False)


def test_only_questions_with_the_form_of_ids_are_asked() -> None:
    events = [("approval.requested", {"id": name, "kind": "tool"}) for name in ("ap-1", "../x", 7, "AP-1", None)]
    _, changes = read(Progress(), numbered(events), at_ms=7, price=lambda *_: None)
    assert [waiting.id for waiting in changes.asked] == ["ap-1"]


@pytest.mark.parametrize("kind", ["approval.requested", "git.push_requested", "approval.answered"])
@pytest.mark.parametrize("name", ["hp-1", "sp-1", "ho-1", "in-1"])
def test_a_guest_cannot_ask_or_withdraw_under_an_id_of_the_host(kind: str, name: str) -> None:
    _, changes = read(Progress(), numbered([(kind, {"id": name, "kind": "tool"})]), at_ms=7, price=lambda *_: None)
    assert (changes.asked, changes.withdrawn) == ([], [])


def test_changes_of_the_workspace_are_remembered_but_not_all_of_them() -> None:
    after = reading([("file.diff", {"hash": str(number)}) for number in range(3 * MAX_DIFFS)])
    assert len(after.diffs) == MAX_DIFFS


@pytest.mark.parametrize(
    ("caps", "events", "cap"),
    [
        (Caps(steps=2), [tool("start", str(number)) for number in range(3)], "steps"),
        (Caps(tokens=10), [("agent.usage", {"input_tokens": 6, "cache_read_tokens": 5})], "tokens"),
        (Caps(usd=1.0), [("agent.usage", {"usd": 1.000001})], "usd"),
        (Caps(output_bytes=1024), [("agent.usage", {"output_bytes": 1025})], "output_bytes"),
    ],
)
def test_a_cap_is_reached_when_it_is_passed_and_not_before(
    caps: Caps, events: list[tuple[str, dict[str, Any]]], cap: str
) -> None:
    verdict = judge(reading(events), caps, Loop(), wall_ms=0)
    assert isinstance(verdict, Capped)
    assert verdict.cap == cap
    assert verdict.reason["code"] == "cap"
    assert judge(reading(events[:-1]), caps, Loop(), wall_ms=0) is None


def test_time_is_a_cap() -> None:
    assert over_caps(Progress().usage, Caps(wall_sec=3), wall_ms=2999) is None
    assert over_caps(Progress().usage, Caps(wall_sec=3), wall_ms=3000) == Capped("wall_sec", 3, 3.0)


@given(st.integers(1, 6), st.integers(0, 6))
def test_the_same_command_that_fails_in_a_row_is_a_loop(times: int, limit: int) -> None:
    failing = [event for _ in range(times) for event in (tool("start"), tool("end", command="make", is_error=True))]
    verdict = looping(reading(failing), Loop(same_failure=limit))
    assert (verdict is not None) == (limit > 0 and times >= limit)
    well = [*failing, tool("start"), tool("end", command="make", is_error=False)]
    assert looping(reading(well), Loop(same_failure=limit)) is None
    other = [*failing, tool("start"), tool("end", command="other", is_error=True)]
    assert looping(reading(other), Loop(same_failure=limit)) == (
        Looping("same_failure", "other", 1) if limit == 1 else None
    )


def test_a_workspace_that_comes_back_to_the_same_change_is_a_loop() -> None:
    events = [("file.diff", {"hash": name}) for name in "abababa"]
    assert looping(reading(events[:4]), Loop()) is None
    assert looping(reading(events[:5]), Loop()) == Looping("same_diff", "a", 3)
    assert looping(reading(events), Loop(same_diff=0)) is None


@pytest.mark.parametrize(
    ("usd", "asked_before", "number"), [(0.09, 0, None), (0.1, 0, 1), (0.35, 0, 3), (0.35, 3, None)]
)
def test_spending_is_asked_about_at_every_multiple(usd: float, asked_before: int, number: int | None) -> None:
    progress = Progress(usd=usd, approved_spends=asked_before)
    asked = spending(progress, Approvals(spend_usd=0.1))
    assert (None if asked is None else asked.number) == number
    assert spending(progress, Approvals()) is None
