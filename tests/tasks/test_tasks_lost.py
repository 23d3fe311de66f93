"""A task's machine is killed under it, and the task goes on in another one, from its last checkpoint.

What is done after the last checkpoint is lost and done again; what it covers is not. The real agents find their session
in the new machine and go on with it.
"""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.gitserver import GitServer
from tests.models.anthropic import AnthropicModel
from tests.models.openai import OpenAIModel
from tests.models.script import ScriptedModel, Turn, Usage
from tests.tasks import scripts
from tests.tasks.archive import opened
from tests.tasks.client import Caller, Task
from tests.tasks.places import git_server
from tests.tasks.stage import Stage
from tests.tasks.test_tasks_agents import FIGURES, LIMIT_S, is_mended, serving
from tests.tasks.test_tasks_kills import COMMITS, WORK, Follower
from tests.vm import traces
from tests.vm.client import until

GIT = "https://lost-git.example.com"
KILLS = 2


@pytest.fixture(scope="module")
def gits(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitServer]:
    with git_server(stage.places, tmp_path_factory.mktemp("git"), "lost-git.example.com") as server:
        server.make("calc", scripts.FILES)
        yield server


def kill_machine(stage: Stage, task: Task) -> None:
    """As when the kernel, for want of memory, ends the process of a machine."""
    machine = traces.ledger_machine(stage.host.state, task.view["sandbox"])
    os.kill(traces.machines(stage.host.state)[machine], signal.SIGKILL)


def covered(task: Task, steps: int, run: int = 1) -> dict[str, Any]:
    """The first checkpoint of this run that covers so many steps, as soon as it is there."""

    def found() -> dict[str, Any] | None:
        runs = 1
        for event in task.events():
            runs += event["kind"] == "task.continued"
            if event["kind"] == "task.checkpoint" and runs == run and event["data"]["steps"] >= steps:
                data: dict[str, Any] = event["data"]
                return data
        assert task.view["phase"] != "done", task.story(task.view)
        return None

    checkpoint = until(found, limit_s=LIMIT_S)
    assert checkpoint is not None
    return checkpoint


def test_a_task_survives_the_death_of_its_machine_twice(stage: Stage, alice: Caller) -> None:
    task = alice.task(WORK, checkpoint={"steps": 4})
    follower = Follower(task)
    for kill in range(KILLS):
        covered(task, 1, run=kill + 1)
        kill_machine(stage, task)
    view = task.ended()
    follower.wait()
    assert view["continued"] == KILLS
    assert [event["seq"] for event in follower.seen] == list(range(1, len(follower.seen) + 1))
    told = [event["guest_seq"] for event in follower.seen if event.get("guest_seq") is not None]
    assert told == list(range(1, len(told) + 1))
    continued = task.of("task.continued")
    assert [each["run"] for each in continued] == [2, 3]
    assert all(each["checkpoint"] for each in continued)
    with opened(task) as archive:
        assert archive.subjects() == ["Plan of the task", *(f"Step {number}" for number in range(COMMITS))]
        for number in range(COMMITS):
            assert archive.found(f"file{number}.txt").read_text().strip() == str(number)
    steps = task.steps()
    assert [step["number"] for step in steps] == list(range(1, len(steps) + 1))
    assert view["usage"]["steps"] == len(steps)
    assert task.kinds().count("task.completed") == 1


def held(turns: Sequence[Turn], after: int, hold: threading.Event) -> list[Turn]:
    """The same, but that the answer after so many of them is never heard: the machine dies waiting for it."""
    return [*turns[:after], Turn("Never heard.", hold=hold, usage=Usage(0, 0)), *turns[after:]]


def goes_on(stage: Stage, task: Task, model: ScriptedModel, gits: GitServer, after: int) -> dict[str, Any]:
    until(lambda: len(model.turns_asked) > after, limit_s=LIMIT_S)
    covered(task, after)
    session = task.view["session"]
    kill_machine(stage, task)
    view = task.ended(limit_s=LIMIT_S)
    is_mended(task, gits)
    assert (view["continued"], view["session"]) == (1, session)
    assert view["result"]["summary"] == scripts.SAID
    assert len(view["result"]["commits"]) == 1
    usage = view["usage"]
    assert {name: usage[name] for name in FIGURES} == {name: getattr(model.used, name) for name in FIGURES}
    return view


def test_claude_code_goes_on_in_another_machine(stage: Stage, alice: Caller, gits: GitServer) -> None:
    hold, after = threading.Event(), 4
    turns = held(scripts.claude(), after, hold)
    with serving(stage, "claude-lost.example.com", AnthropicModel, turns) as model:
        task = alice.task(
            "Mend add.",
            agent="claude",
            model=scripts.CLAUDE_MODEL,
            repo=f"{GIT}/calc.git",
            env={"ANTHROPIC_BASE_URL": "https://claude-lost.example.com", "ANTHROPIC_API_KEY": "x"},
            checkpoint={"steps": 1},
        )
        try:
            goes_on(stage, task, model, gits, after)
        finally:
            hold.set()


def test_codex_goes_on_in_another_machine(stage: Stage, alice: Caller, gits: GitServer) -> None:
    hold, after = threading.Event(), 3
    turns = held(scripts.codex(), after, hold)
    with serving(stage, "codex-lost.example.com", OpenAIModel, turns) as model:
        task = alice.task(
            "Mend add.",
            agent="codex",
            model=scripts.CODEX_MODEL,
            repo=f"{GIT}/calc.git",
            env={"OPENAI_BASE_URL": "https://codex-lost.example.com/v1", "OPENAI_API_KEY": "x"},
            checkpoint={"steps": 1},
        )
        try:
            goes_on(stage, task, model, gits, after)
        finally:
            hold.set()
