"""A task whose machine dies goes on in another one, from its last checkpoint: on the local engine, with real agents."""

import asyncio
import itertools
import random

import pytest

from contract.task_states import TaskEvent
from poold.errors import GuestError
from poold.tasks.checkpointing import take
from poold.tasks.continuing import Facts, Way, decide
from tests.unit.tasks.tasks_stage import Stage, a_folder, open_stage

COMMITS = 6
WORK = "\n".join(f"append log.txt {n}\nrun sleep 0.15\ncommit Step {n}\ntokens 10 1 0.01" for n in range(COMMITS))


async def killed(stage: Stage, task: str) -> bool:
    """The task's machine dies. Whether there was one."""
    sandbox = (await stage.get(task))["sandbox"]
    found = [live for live in stage.host.sandboxes.machines() if live.sandbox.id == sandbox]
    for live in found:
        await stage.host.engine.destroy(live.place.machine_id)
    return bool(found)


async def whole(stage: Stage, task: str) -> dict[str, object]:
    """The task is as if its machine had never died."""
    view = await stage.ended(task)
    events = (await stage.ask("GET", task, "/events?limit=1000")).json["events"]
    assert view["state"] == "completed", (view, [(event["kind"], event["data"]) for event in events])
    subjects = [each["subject"] for each in view["result"]["commits"]]
    assert subjects == [*(f"Step {n}" for n in reversed(range(COMMITS))), "Plan of the task"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    told = [event["guest_seq"] for event in events if event.get("guest_seq") is not None]
    assert told == sorted(set(told))
    steps = await stage.steps(task)
    assert [step["number"] for step in steps] == list(range(1, len(steps) + 1))
    assert all(step["ended_ms"] for step in steps)
    assert view["usage"]["steps"] == len(steps)
    kinds = [event["kind"] for event in events]
    assert kinds.count("task.completed") == kinds.count("agent.ended") == kinds.count("task.archived") == 1
    assert kinds.count("task.continued") == view["continued"]
    assert kinds.count("agent.started") <= view["continued"] + 1
    return view


@pytest.mark.parametrize("seed", range(5))
async def test_a_task_whose_machines_die_at_any_moment_completes_and_does_nothing_twice(seed: int) -> None:
    dice = random.Random(seed)
    async with open_stage() as stage:
        task = await stage.create(WORK, retries=10)
        for _ in range(dice.randint(1, 3)):
            await asyncio.sleep(dice.uniform(0.1, 2.0))
            await killed(stage, task)
        view = await whole(stage, task)
        used = view["usage"]
        assert used["input_tokens"] >= 10 * COMMITS  # type: ignore[index]
        archive = await stage.ask("GET", task, "/diff")
        assert b"".join(b"+%d\n" % n for n in range(COMMITS)) in archive.body
        assert [each async for each in stage.host.services.tasks.tools.store.list(f"checkpoints/{task}/")] == []


async def test_what_a_task_used_counts_once_and_what_is_done_again_counts_again(stage: Stage) -> None:
    task = await stage.create("tokens 100 10 0.5\ncommit One\nsleep 600", checkpoint={"steps": 1})
    await checkpointed(stage, task, steps=3)
    await killed(stage, task)
    await stage.until(task, lambda view: view["continued"] == 1 and view["phase"] == "run")
    await stage.ask("POST", task, "/stop")
    view = await stage.ended(task)
    assert (view["usage"]["input_tokens"], view["usage"]["usd"]) == (100, 0.5)
    (told,) = [data for kind, data in await stage.events(task) if kind == "task.continued"]
    assert told["run"] == 2
    assert told["checkpoint"] >= 1


async def checkpointed(stage: Stage, task: str, steps: int) -> None:
    """Wait until a checkpoint covers so many steps."""
    async with asyncio.timeout(60):
        while not [
            1 for kind, data in await stage.events(task) if kind == "task.checkpoint" and data["steps"] >= steps
        ]:
            await asyncio.sleep(0.03)


async def test_there_is_no_checkpoint_of_a_machine_whose_agent_has_not_said_its_session(stage: Stage) -> None:
    task = await stage.create("commit One\nsleep 600", checkpoint={"steps": 0, "minutes": 0})
    await stage.until(task, lambda view: view["usage"]["steps"] >= 4)
    empty = (await stage.host.ask("POST", "/v1/sandboxes", {})).json["id"]
    life = stage.host.services.tasks._lives[task]
    with pytest.raises(GuestError, match="session"):
        await take(life, empty)
    assert [each async for each in life.tools.store.list(f"checkpoints/{task}/")] == []
    assert (await take(life, (await stage.get(task))["sandbox"])).session
    assert "task.checkpoint" in await stage.kinds(task)


async def test_a_daemon_that_finds_the_machine_gone_goes_on_with_the_task() -> None:
    async with a_folder() as folder:
        async with open_stage(folder) as stage:
            task = await stage.create(WORK)
            await checkpointed(stage, task, steps=4)
            engine = stage.host.engine
        for machine in engine.found():
            await engine.destroy(machine.id)
        async with open_stage(folder) as stage:
            view = await whole(stage, task)
            assert view["continued"] == 1


async def test_an_open_question_is_withdrawn_and_asked_again(stage: Stage) -> None:
    task = await stage.create("commit One\nask Go on?\nrun cat ANSWER.md", checkpoint={"steps": 1})
    view = await stage.until(task, lambda view: bool(view["waiting"]))
    first = view["waiting"][0]["id"]
    await checkpointed(stage, task, steps=3)
    await killed(stage, task)
    view = await stage.until(task, lambda view: bool(view["waiting"]) and view["waiting"][0]["id"] != first)
    said = {"kind": "answer", "id": view["waiting"][0]["id"], "text": "yes, go on"}
    assert (await stage.ask("POST", task, "/input", said)).status == 200
    view = await stage.ended(task)
    assert view["state"] == "completed", view
    assert "yes, go on" in (await stage.steps(task))[-1]["output"]


async def test_without_a_checkpoint_it_begins_anew_unless_a_person_has_answered(stage: Stage) -> None:
    off = {"steps": 0, "minutes": 0}
    task = await stage.create("run sleep 1\nedit a.txt a", checkpoint=off)
    await stage.until(task, lambda view: view["usage"]["steps"] >= 3)
    await killed(stage, task)
    view = await stage.ended(task)
    assert (view["state"], view["continued"]) == ("completed", 1)
    assert [data["checkpoint"] for kind, data in await stage.events(task) if kind == "task.continued"] == [None]
    task = await stage.create("ask Go on?\nsleep 600", checkpoint=off)
    asked = await stage.until(task, lambda view: bool(view["waiting"]))
    said = {"kind": "answer", "id": asked["waiting"][0]["id"], "text": "yes"}
    assert (await stage.ask("POST", task, "/input", said)).status == 200
    await stage.until(task, lambda view: view["usage"]["steps"] >= 4)
    await killed(stage, task)
    assert (await stage.ended(task))["reason"]["code"] == "machine"


async def test_a_checkpoint_that_is_damaged_fails_the_task_and_is_left_as_it_is(stage: Stage) -> None:
    task = await stage.create("edit a.txt a\ncommit One\nsleep 600", checkpoint={"steps": 1})
    await checkpointed(stage, task, steps=4)
    folder = stage.host.services.tasks.tools.config.store / "checkpoints" / task
    archives = sorted(folder.rglob("*.tar.zst"))
    for archive in archives:
        data = bytearray(archive.read_bytes())
        data[-20] ^= 1
        archive.write_bytes(data)
    await killed(stage, task)
    view = await stage.ended(task)
    assert (view["state"], view["reason"]["code"]) == ("failed", "checkpoint"), view
    assert sorted(folder.rglob("*.tar.zst")) == archives


async def test_a_task_that_loses_one_machine_too_many_has_failed_and_its_last_checkpoint_is_kept(stage: Stage) -> None:
    task = await stage.create("commit One\nsleep 600", checkpoint={"steps": 1}, retries=1)
    for continued in (0, 1):
        await stage.until(task, lambda view, n=continued: view["continued"] == n and view["phase"] == "run")  # type: ignore[misc]
        await checkpointed(stage, task, steps=3)
        await killed(stage, task)
    view = await stage.ended(task)
    assert (view["state"], view["reason"]["code"], view["continued"]) == ("failed", "machine", 1)
    assert [each async for each in stage.host.services.tasks.tools.store.list(f"checkpoints/{task}/")] != []


def test_a_task_goes_on_only_if_nothing_is_had_twice() -> None:
    phases, endings = ("claim", "clone", "restore", "run", "finish", "done"), (None, *TaskEvent)
    for phase, ending in itertools.product(phases, endings):
        for stopped, kept, checkpoint, effects in itertools.product((False, True), repeat=4):
            for continued in (0, 3):
                way = decide(Facts(stopped, phase, ending, kept, continued, 3, checkpoint, effects))
                if stopped or continued == 3 or phase == "done" or ending not in (None, TaskEvent.COMPLETE):
                    assert way is Way.NOT
                if ending is TaskEvent.COMPLETE and kept:
                    assert way is Way.NOT
                if way is Way.RESTORED:
                    assert checkpoint
                if way is Way.ANEW and phase in ("run", "finish"):
                    assert not effects


async def test_checkpoints_stay_until_the_replica_knows_that_nobody_needs_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successor's ledger may still have them, and go on from there."""
    is_asked, is_open = asyncio.Event(), asyncio.Event()

    async def covered() -> None:
        is_asked.set()
        await is_open.wait()

    store = stage.host.services.tasks.tools.store
    task = await stage.create("commit One\nask Go on?", checkpoint={"steps": 1})
    view = await stage.until(task, lambda view: bool(view["waiting"]))
    await checkpointed(stage, task, steps=3)
    monkeypatch.setattr(stage.host.services.ledger, "covered", covered, raising=False)
    said = {"kind": "answer", "id": view["waiting"][0]["id"], "text": "yes"}
    assert (await stage.ask("POST", task, "/input", said)).status == 200
    async with asyncio.timeout(60):
        await is_asked.wait()
    assert [each async for each in store.list(f"checkpoints/{task}/")] != []
    is_open.set()
    await stage.ended(task)
    assert [each async for each in store.list(f"checkpoints/{task}/")] == []
