"""What ends a task before its agent does: caps and loops. Each says which it was, and what there was is archived."""

from typing import Any

import pytest

from tests.tasks.archive import opened
from tests.tasks.client import Caller, Task

STEPS = "\n".join(f"append steps.txt {number}" for number in range(40))
SPEND = "\n".join(["edit a.txt a", *["tokens 1000 100 0.25\nrun true"] * 40])


def failed(task: Task, code: str) -> dict[str, Any]:
    view = task.ended("failed")
    assert view["reason"]["code"] == code, task.story(view)
    assert view["result"]["archive"]["bytes"] > 0
    kinds = task.kinds()
    assert kinds.index("task.archived") < kinds.index("task.failed")
    return view


@pytest.mark.parametrize(
    ("cap", "limit", "prompt"),
    [
        ("steps", 5, STEPS),
        ("tokens", 3000, SPEND),
        ("usd", 1.0, SPEND),
        ("wall_sec", 5, "edit a.txt a\nsleep 600"),
        ("output_bytes", 1 << 20, "edit a.txt a\nprint 30000000\nsleep 600"),
    ],
)
def test_a_cap_ends_the_task_when_it_is_passed(alice: Caller, cap: str, limit: float, prompt: str) -> None:
    task = alice.task(prompt, caps={cap: limit})
    view = failed(task, "cap")
    assert view["reason"]["cap"] == cap
    assert view["reason"]["limit"] == limit
    assert view["reason"]["value"] >= limit
    (told,) = task.of("cap.reached")
    assert (told["cap"], told["limit"], told["value"]) == (cap, limit, view["reason"]["value"])
    within(cap, limit, view["usage"])
    with opened(task) as archive:
        assert archive.found("AGENT_TASK.md")


def within(cap: str, limit: float, usage: dict[str, Any]) -> None:
    """A cap ends the task at once, and not some time later."""
    match cap:
        case "steps":
            assert limit <= usage["steps"] <= limit + 3
        case "tokens":
            assert sum(usage[name] for name in usage if name.endswith("_tokens")) <= limit + 3 * 1100
        case "usd":
            assert limit <= usage["usd"] <= limit + 3 * 0.25
        case "wall_sec":
            assert usage["wall_ms"] >= limit * 1000
        case "output_bytes":
            assert limit <= usage["output_bytes"] <= limit + (1 << 20)


@pytest.mark.parametrize(
    ("rule", "prompt"),
    [("same_diff", "loop diff 12\nedit late.txt late"), ("same_failure", "loop fail 12 false\nedit late.txt late")],
)
def test_a_loop_is_found_and_ends_the_task(alice: Caller, rule: str, prompt: str) -> None:
    task = alice.task(prompt, loop={"same_diff": 0, "same_failure": 0, rule: 3})
    view = failed(task, "loop")
    assert view["reason"]["rule"] == rule
    (told,) = task.of("loop.found")
    assert (told["rule"], told["times"]) == (rule, 3)
    with opened(task) as archive:
        assert not list(archive.root.rglob("late.txt"))


def test_what_is_switched_off_is_no_loop(alice: Caller) -> None:
    task = alice.task("loop diff 5\nloop fail 5 false\nedit late.txt late", loop={"same_diff": 0, "same_failure": 0})
    task.ended()
    assert task.of("loop.found") == []
