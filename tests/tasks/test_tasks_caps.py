"""What ends a task before its agent does: caps and loops. Each says which it was, and what there was is archived."""

from typing import Any

import pytest

from tests.tasks.archive import opened
from tests.tasks.client import Caller, Task

STEPS = "\n".join(f"append steps.txt {number}" for number in range(40))
SPEND = "\n".join(["tokens 1000 100 0.25\nrun true"] * 40)
CAPS: dict[str, tuple[float, str]] = {
    "steps": (5, STEPS),
    "tokens": (3000, SPEND),
    "usd": (1.0, SPEND),
    "wall_sec": (20, "sleep 600"),
    "output_bytes": (1 << 20, "print 30000000\nsleep 600"),
}
LOOPS = {"same_diff": "loop diff 12", "same_failure": "loop fail 12 false"}
NO_LOOP = {"same_diff": 0, "same_failure": 0}
Tasks = dict[str, Task]


@pytest.fixture(scope="module")
def tasks(alice: Caller) -> Tasks:
    asked: dict[str, dict[str, Any]] = {
        cap: {"prompt": prompt, "caps": {cap: limit}} for cap, (limit, prompt) in CAPS.items()
    }
    asked["switched off"] = {"prompt": "loop diff 4\nloop fail 4 false\nedit late.txt late", "loop": NO_LOOP}
    return alice.begin(asked)


def failed(task: Task, code: str) -> dict[str, Any]:
    view = task.ended("failed")
    assert view["reason"]["code"] == code, task.story(view)
    kinds = task.kinds()
    assert kinds.index("task.archived") < kinds.index("task.failed")
    return view


@pytest.mark.parametrize("cap", CAPS)
def test_a_cap_ends_the_task_when_it_is_passed(tasks: Tasks, cap: str) -> None:
    task, limit = tasks[cap], CAPS[cap][0]
    view = failed(task, "cap")
    figures = {name: view["reason"][name] for name in ("cap", "limit", "value")}
    assert (figures["cap"], figures["limit"]) == (cap, limit)
    assert figures["value"] >= limit
    assert task.of("cap.reached") == [figures]
    assert_not_much_later(cap, limit, view["usage"])
    with opened(task) as archive:
        # On a busy machine it may not have done a thing before its time was over.
        assert cap == "wall_sec" or archive.found("AGENT_TASK.md")


def assert_not_much_later(cap: str, limit: float, usage: dict[str, Any]) -> None:
    """What an agent does until it hears that it is to stop counts, too."""
    match cap:
        case "steps":
            assert limit < usage["steps"] <= limit + 10
        case "tokens":
            assert limit < sum(usage[name] for name in usage if name.endswith("_tokens")) <= limit + 10 * 1100
        case "usd":
            assert limit < usage["usd"] <= limit + 10 * 0.25
        case "wall_sec":
            assert usage["wall_ms"] >= limit * 1000
        case "output_bytes":
            assert limit <= usage["output_bytes"] <= limit + (1 << 20)


def test_what_is_switched_off_is_no_loop(tasks: Tasks) -> None:
    tasks["switched off"].ended()
    assert tasks["switched off"].of("loop.found") == []


@pytest.mark.parametrize("rule", LOOPS)
def test_a_loop_is_found_and_ends_the_task(alice: Caller, rule: str) -> None:
    """Nobody else works: a guest does not look at what changed if looking takes too long."""
    task = alice.task(f"{LOOPS[rule]}\nedit late.txt late", loop={**NO_LOOP, rule: 3})
    view = failed(task, "loop")
    assert view["reason"]["rule"] == rule
    (told,) = task.of("loop.found")
    assert (told["rule"], told["times"]) == (rule, 3)
    with opened(task) as archive:
        assert not list(archive.root.rglob("late.txt"))
