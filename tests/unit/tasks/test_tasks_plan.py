"""When a task is paused, when its machine is on disk, and when both come back."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from contract.states import State
from contract.task_states import TaskState
from contract.tasks import Waiting
from poold.tasks.plan import Act, Facts, next_ms, plan


def waiting(kind: str, since_ms: int = 0) -> Waiting:
    return Waiting("ap-1", kind, "?", None, None, since_ms)


def facts(**more: object) -> Facts:
    usual: dict[str, object] = {
        "state": TaskState.RUNNING,
        "sandbox": State.RUNNING,
        "is_held": False,
        "is_ending": False,
        "open": (),
        "has_answers": False,
        "pause_after_ms": 1000,
        "awake_since_ms": 0,
        "can_save": True,
        "now_ms": 500,
    }
    return Facts(**{**usual, **more})  # type: ignore[arg-type]


every = st.builds(
    Facts,
    state=st.sampled_from([TaskState.PLANNING, TaskState.RUNNING, TaskState.PAUSED]),
    sandbox=st.sampled_from([State.RUNNING, State.PAUSED, State.STARTING, None]),
    is_held=st.booleans(),
    is_ending=st.booleans(),
    open=st.lists(st.builds(waiting, st.sampled_from(["question", "spend"]), st.integers(0, 2000)), max_size=2).map(
        tuple
    ),
    has_answers=st.booleans(),
    pause_after_ms=st.just(1000),
    awake_since_ms=st.integers(0, 2000),
    can_save=st.booleans(),
    now_ms=st.integers(0, 5000),
)


@given(every)
def test_nothing_is_done_that_contradicts_itself(known: Facts) -> None:
    acts = plan(known)
    assert not {Act.SLEEP, Act.WAKE} <= set(acts)
    assert not {Act.PAUSE, Act.RESUME} <= set(acts)
    assert len(acts) == len(set(acts))
    if Act.SLEEP in acts:
        assert known.sandbox is State.RUNNING
        assert known.can_save
        assert not {Act.RESUME, Act.DELIVER} & set(acts)
    if known.is_ending:
        assert not set(acts) - {Act.WAKE}


@given(every)
def test_what_is_to_end_is_woken_for_its_work_to_be_kept(known: Facts) -> None:
    assert plan(replace(known, is_ending=True, sandbox=State.PAUSED)) == [Act.WAKE]


def test_who_is_asked_something_waits_at_once_and_its_machine_is_saved_later() -> None:
    young = facts(open=(waiting("question"),))
    assert plan(young) == [Act.PAUSE]
    assert next_ms(young) == 1000
    assert plan(facts(state=TaskState.PAUSED, open=(waiting("question"),), now_ms=1000)) == [Act.SLEEP]


def test_who_may_not_spend_on_is_saved_at_once() -> None:
    assert plan(facts(open=(waiting("spend"),))) == [Act.PAUSE, Act.SLEEP]


def test_who_is_paused_by_a_caller_is_paused_when_its_machine_is_on_disk() -> None:
    assert plan(facts(is_held=True)) == [Act.SLEEP, Act.PAUSE]


def test_an_answer_brings_a_machine_back_and_is_delivered() -> None:
    asleep = {"state": TaskState.PAUSED, "sandbox": State.PAUSED}
    assert plan(facts(**asleep, has_answers=True)) == [Act.WAKE, Act.RESUME, Act.DELIVER]
    assert plan(facts(**asleep, has_answers=True, is_held=True)) == []
    assert plan(facts(**asleep, open=(waiting("question"),))) == []


def test_where_nothing_can_be_saved_a_task_only_waits() -> None:
    assert plan(facts(open=(waiting("spend"),), can_save=False)) == [Act.PAUSE]
