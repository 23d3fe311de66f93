"""What happens to a sandbox by itself: pure, so any sandbox will do."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from contract.models import Next, Rules, Sandbox, Shape
from contract.states import State
from poold.sandboxes.lifecycle import Activity, following

MOMENTS = st.integers(0, 1 << 41)
SECONDS = st.integers(1, 30 * 24 * 3600)
RULES = st.builds(
    Rules,
    timeout_sec=SECONDS,
    on_timeout=st.sampled_from(["pause", "destroy"]),
    idle_sec=st.none() | SECONDS,
    hibernate_sec=st.none() | SECONDS,
    paused_sec=st.none() | SECONDS,
    auto_resume=st.booleans(),
)
SANDBOXES = st.builds(
    Sandbox,
    id=st.just("sb-aaaaaaaaaaaaaaaa"),
    state=st.sampled_from(State),
    shape=st.just(Shape("python", 1, 512, 4096)),
    metadata=st.just({}),
    created_ms=MOMENTS,
    expires_ms=st.none() | MOMENTS,
    rules=RULES,
    paused_ms=st.none() | MOMENTS,
)
ACTIVITIES = st.none() | st.builds(Activity, last_ms=MOMENTS, is_busy=st.booleans())


@given(SANDBOXES, ACTIVITIES)
def test_only_what_runs_or_sleeps_has_something_before_it(sandbox: Sandbox, activity: Activity | None) -> None:
    step = following(sandbox, activity, now_ms=0)
    if step is not None:
        assert (sandbox.state, step.why) in {
            (State.RUNNING, "timeout"),
            (State.RUNNING, "idle"),
            (State.PAUSED, "paused"),
            (State.HIBERNATED, "paused"),
        }


@given(SANDBOXES, MOMENTS)
def test_a_busy_sandbox_is_never_idle(sandbox: Sandbox, last_ms: int) -> None:
    step = following(sandbox, Activity(last_ms, is_busy=True), now_ms=0)
    assert step is None or step.why != "idle"


@given(SANDBOXES)
def test_a_sandbox_of_which_nothing_is_known_is_never_idle(sandbox: Sandbox) -> None:
    step = following(sandbox, None, now_ms=0)
    assert step is None or step.why != "idle"


@given(SANDBOXES, MOMENTS)
def test_of_what_may_happen_the_earliest_does(sandbox: Sandbox, last_ms: int) -> None:
    sandbox = replace(sandbox, state=State.RUNNING)
    rules = sandbox.rules
    moments = []
    if sandbox.expires_ms is not None:
        moments.append((sandbox.expires_ms, rules.on_timeout, "timeout"))
    if rules.idle_sec is not None:
        moments.append((last_ms + 1000 * rules.idle_sec, "pause", "idle"))
    step = following(sandbox, Activity(last_ms, is_busy=False), now_ms=0)
    if not moments:
        assert step is None
        return
    assert step is not None
    assert (step.at_ms, step.action, step.why) in moments
    assert step.at_ms == min(moments)[0]


@given(SANDBOXES, ACTIVITIES, MOMENTS)
def test_a_timeout_that_is_due_comes_before_all_else(
    sandbox: Sandbox, activity: Activity | None, expires_ms: int
) -> None:
    sandbox = replace(sandbox, state=State.RUNNING, expires_ms=expires_ms)
    step = following(sandbox, activity, now_ms=expires_ms)
    assert step == Next(sandbox.rules.on_timeout, expires_ms, "timeout")


@given(SANDBOXES, ACTIVITIES)
def test_a_paused_one_goes_only_if_its_rules_say_so(sandbox: Sandbox, activity: Activity | None) -> None:
    sandbox = replace(sandbox, state=State.PAUSED)
    spans = {"destroy": sandbox.rules.paused_sec, "hibernate": sandbox.rules.hibernate_sec}
    moments = {action: span for action, span in spans.items() if span is not None and sandbox.paused_ms is not None}
    step = following(sandbox, activity, now_ms=0)
    if not moments:
        assert step is None
    else:
        first = min(moments, key=lambda action: moments[action])  # of two at one moment the end comes first
        assert step == Next(first, (sandbox.paused_ms or 0) + 1000 * moments[first], "paused")


@given(SANDBOXES, ACTIVITIES)
def test_one_in_the_store_is_destroyed_after_as_long_as_on_disk(sandbox: Sandbox, activity: Activity | None) -> None:
    step = following(replace(sandbox, state=State.HIBERNATED), activity, now_ms=0)
    if sandbox.rules.paused_sec is None or sandbox.paused_ms is None:
        assert step is None
    else:
        assert step == Next("destroy", sandbox.paused_ms + 1000 * sandbox.rules.paused_sec, "paused")


@given(SANDBOXES, MOMENTS, st.integers(0, 1 << 40), st.booleans())
def test_more_activity_never_brings_an_end_nearer(sandbox: Sandbox, last_ms: int, more_ms: int, is_busy: bool) -> None:
    before = following(sandbox, Activity(last_ms, is_busy=False), now_ms=0)
    after = following(sandbox, Activity(last_ms + more_ms, is_busy), now_ms=0)
    if before is None:
        assert after is None
    else:
        assert after is None or after.at_ms >= before.at_ms
