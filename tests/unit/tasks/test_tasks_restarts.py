"""A daemon that ends in the middle of a task's life, at any point of it: the next one goes on from there."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.unit.tasks.tasks_stage import Stage, a_folder, open_stage

WORK = "\n".join(f"run echo {number} > file{number}.txt; sleep 0.1\ncommit Step {number}" for number in range(6))
SEED = 20


async def whole(stage: Stage, task: str) -> None:
    """The task is as if its host had never ended."""
    view = await stage.ended(task)
    assert view["state"] == "completed", view
    subjects = [each["subject"] for each in view["result"]["commits"] if each["subject"].startswith("Step")]
    assert subjects == [f"Step {number}" for number in reversed(range(6))]
    steps = await stage.steps(task)
    assert [step["number"] for step in steps] == list(range(1, len(steps) + 1))
    assert view["usage"]["steps"] == len(steps)
    reply = await stage.ask("GET", task, "/events?limit=1000")
    numbers = [event["seq"] for event in reply.json["events"]]
    assert numbers == list(range(1, len(numbers) + 1))
    kinds = [event["kind"] for event in reply.json["events"]]
    for once in ("agent.started", "agent.ended", "task.archived", "task.completed"):
        assert kinds.count(once) == 1, (once, kinds)
    assert view["result"]["archive"] is not None


async def test_a_task_goes_on_wherever_its_daemon_was_ended() -> None:
    dice = random.Random(SEED)
    async with a_folder() as folder:
        async with open_stage(folder) as stage:
            task = await stage.create(WORK)
            await asyncio.sleep(dice.uniform(0, 0.5))
        for _ in range(6):
            async with open_stage(folder) as stage:
                await asyncio.sleep(dice.uniform(0, 1.2))
        async with open_stage(folder) as stage:
            await whole(stage, task)


@pytest.mark.parametrize("phase", ["claim", "clone", "run", "finish"])
async def test_a_task_goes_on_in_each_of_its_phases(phase: str) -> None:
    async with a_folder() as folder:
        async with open_stage(folder) as stage:
            task = await stage.create(WORK)
            async with asyncio.timeout(60):
                while (await stage.host.services.tasks.get(task)).phase != phase:
                    await asyncio.sleep(0)
        async with open_stage(folder) as stage:
            await whole(stage, task)


async def test_an_answer_that_was_not_delivered_is_delivered_by_the_next_daemon() -> None:
    async with a_folder() as folder:
        async with open_stage(folder) as stage:
            task = await stage.create("run echo $PPID > before.txt\nask Go on?\nrun cat ANSWER.md")
            view = await stage.until(task, lambda view: bool(view["waiting"]))
        async with open_stage(folder) as stage:
            assert (await stage.get(task))["waiting"] == view["waiting"]
            stage.host.services.tasks._lives[task].wake = lambda: None  # type: ignore[method-assign]
            said = {"kind": "answer", "id": view["waiting"][0]["id"], "text": "yes, go on"}
            assert (await stage.ask("POST", task, "/input", said)).status == 200
        async with open_stage(folder) as stage:
            view = await stage.ended(task)
            assert view["state"] == "completed", view
            assert "yes, go on" in (await stage.steps(task))[-1]["output"]
            assert (await stage.kinds(task)).count("agent.started") == 1


async def test_a_stop_is_not_lost_by_a_restart() -> None:
    async with a_folder() as folder:
        async with open_stage(folder) as stage:
            task = await stage.create("edit a.txt a\nsleep 600")
            await stage.until(task, lambda view: view["usage"]["steps"] >= 3)
            stopping = asyncio.create_task(stage.ask("POST", task, "/stop"))
            await asyncio.sleep(0.05)
            await stopping
        async with open_stage(folder) as stage:
            view = await stage.ended(task)
            assert (view["state"], view["reason"]["code"]) == ("stopped", "stopped")


async def test_time_that_was_used_counts_after_a_restart() -> None:
    async with a_folder() as folder:
        async with open_stage(folder) as stage:
            task = await stage.create("sleep 600", caps={"wall_sec": 9})
            await stage.until(task, lambda view: view["usage"]["wall_ms"] >= 4000)
        async with open_stage(folder) as stage:
            assert (await stage.get(task))["usage"]["wall_ms"] >= 4000
            view = await stage.ended(task)
            assert (view["reason"]["code"], view["reason"]["cap"]) == ("cap", "wall_sec")


async def test_tasks_that_waited_for_room_wait_on_in_their_order(tmp_path: Path) -> None:
    async with a_folder() as folder:
        async with open_stage(folder, slots=1) as stage:
            first = await stage.create("sleep 600")
            await stage.until(first, lambda view: view["state"] == "running")
            others = [await stage.create("say hello") for _ in range(3)]
        async with open_stage(folder, slots=1) as stage:
            assert [(await stage.get(task))["state"] for task in others] == ["queued"] * 3
            await stage.ask("POST", first, "/stop")
            ends = [await stage.ended(task) for task in others]
            assert [view["state"] for view in ends] == ["completed"] * 3
            begins = [view["started_ms"] for view in ends]
            assert begins == sorted(begins)
