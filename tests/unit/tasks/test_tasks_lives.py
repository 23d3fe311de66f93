"""Whole lives of tasks, on the local engine with the real guest: every way that an agent's work can go."""

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from poold.ledger import tasks
from poold.tasks.claim import sandbox_request
from tests.gitserver import GitServer, serve
from tests.unit.tasks.tasks_stage import Stage, open_stage

LONG = "edit begun.txt begun\nsleep 600\nedit late.txt late"


async def begun(stage: Stage, task: str) -> str:
    """The task, once its agent has done something."""
    async with asyncio.timeout(60):
        while not [step for step in await stage.steps(task) if step["ended_ms"]]:
            await asyncio.sleep(0.03)
    return task


async def question(stage: Stage, task: str, kind: str) -> dict[str, Any]:
    view = await stage.until(task, lambda view: any(each["kind"] == kind for each in view["waiting"]))
    return next(each for each in view["waiting"] if each["kind"] == kind)


async def test_a_task_goes_through_its_states_and_leaves_its_work_behind(stage: Stage) -> None:
    task = await stage.create("A plan.\nthink easy\nedit one.txt one\nrun cat one.txt\ntokens 100 20 0.01")
    view = await stage.ended(task)
    assert (view["state"], view["reason"], view["phase"]) == ("completed", None, "done")
    kinds = await stage.kinds(task)
    order = ["task.queued", "task.planning", "sandbox.claimed", "task.running", "agent.started", "agent.ended"]
    order += ["git.committed", "task.archived", "task.completed"]
    assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)
    steps = await stage.steps(task)
    assert [step["number"] for step in steps] == list(range(1, len(steps) + 1))
    assert view["usage"]["steps"] == len(steps)
    assert (view["usage"]["input_tokens"], view["usage"]["usd"]) == (100, 0.01)
    assert any("easy" in (step["thought"] or "") for step in steps)
    assert sum(step["input_tokens"] for step in steps) == 100
    assert b"+one" in (await stage.ask("GET", task, "/diff")).body
    archive = await stage.ask("GET", task, "/archive")
    assert hashlib.sha256(archive.body).hexdigest() == view["result"]["archive"]["sha256"]
    sandbox = (await stage.host.ask("GET", f"/v1/sandboxes/{view['sandbox']}")).json
    assert (sandbox["state"], sandbox["metadata"]) == ("stopped", {"task": task})


async def test_an_agent_that_gives_up_has_failed_and_its_work_is_kept(stage: Stage) -> None:
    view = await stage.ended(await stage.create("edit a.txt a\nfail no luck today"))
    assert (view["state"], view["reason"]["code"]) == ("failed", "agent")
    assert "no luck today" in view["reason"]["message"]
    assert view["result"]["archive"]["files"] > 0


async def test_an_agent_that_crashes_has_failed_with_its_last_words(stage: Stage) -> None:
    view = await stage.ended(await stage.create("say something\ncrash"))
    assert (view["state"], view["reason"]["code"]) == ("failed", "agent")


async def test_a_task_that_is_stopped_keeps_what_it_has_done_and_stopping_twice_is_stopping_once(stage: Stage) -> None:
    task = await begun(stage, await stage.create(LONG))
    await stage.ask("POST", task, "/stop")
    assert (await stage.ask("POST", task, "/stop")).status == 200
    view = await stage.ended(task)
    assert (view["state"], view["reason"]["code"]) == ("stopped", "stopped")
    assert view["result"]["diff"]["files"] >= 1
    events = await stage.events(task)
    assert [data["outcome"] for kind, data in events if kind == "agent.ended"] == ["stopped"]
    assert [kind for kind, _ in events].count("task.stopped") == 1
    assert (await stage.ask("POST", task, "/stop")).json["state"] == "stopped"


@pytest.mark.parametrize(
    ("cap", "limit", "prompt"),
    [
        ("steps", 3, "\n".join(f"append a.txt {number}" for number in range(30))),
        ("tokens", 3000, "\n".join(["tokens 1000 100 0.25\nrun true"] * 20)),
        ("usd", 1.0, "\n".join(["tokens 1000 100 0.25\nrun true"] * 20)),
        ("wall_sec", 3, "sleep 600"),
        ("output_bytes", 1 << 16, "print 3000000\nsleep 600"),
    ],
)
async def test_a_cap_ends_the_task_when_it_is_passed(stage: Stage, cap: str, limit: float, prompt: str) -> None:
    task = await stage.create(prompt, caps={cap: limit})
    view = await stage.ended(task)
    assert (view["state"], view["reason"]["code"], view["reason"]["cap"]) == ("failed", "cap", cap)
    (told,) = [data for kind, data in await stage.events(task) if kind == "cap.reached"]
    assert (told["cap"], told["limit"]) == (cap, limit)
    assert view["reason"]["value"] >= limit
    assert view["result"]["archive"] is not None


@pytest.mark.parametrize(("rule", "prompt"), [("same_diff", "loop diff 12"), ("same_failure", "loop fail 12 false")])
async def test_a_loop_ends_the_task(stage: Stage, rule: str, prompt: str) -> None:
    task = await stage.create(prompt, loop={"same_diff": 0, "same_failure": 0, rule: 3})
    view = await stage.ended(task)
    assert (view["state"], view["reason"]["code"], view["reason"]["rule"]) == ("failed", "loop", rule)
    (told,) = [data for kind, data in await stage.events(task) if kind == "loop.found"]
    assert (told["rule"], told["times"]) == (rule, 3)


async def test_a_question_waits_for_its_answer_and_is_answered_once(stage: Stage) -> None:
    task = await stage.create("ask Which colour?\nrun cat ANSWER.md")
    asked = await question(stage, task, "question")
    assert (await stage.until(task, lambda view: view["state"] == "paused"))["waiting"] == [asked]
    refused = await stage.ask("POST", task, "/input", {"kind": "answer", "id": "ap-999", "text": "red"})
    assert (refused.status, refused.code) == (409, "not_waiting")
    said = {"kind": "answer", "id": asked["id"], "text": "blue"}
    assert (await stage.ask("POST", task, "/input", said)).status == 200
    assert (await stage.ask("POST", task, "/input", said)).status == 200  # the same again
    view = await stage.ended(task)
    assert view["state"] == "completed"
    assert "blue" in (await stage.steps(task))[-1]["output"]
    assert [kind for kind in await stage.kinds(task) if kind.startswith("approval")] == [
        "approval.requested",
        "approval.answered",
    ]
    assert (await stage.ask("POST", task, "/input", said)).code == "wrong_state"


@pytest.mark.parametrize("answer", ["approve", "reject"])
async def test_what_needs_a_word_is_done_after_it_or_not_at_all(stage: Stage, answer: str) -> None:
    task = await stage.create("run rm -rf target\nedit late.txt late", approvals={"commands": ["rm -rf *"]})
    asked = await question(stage, task, "command")
    assert (await stage.ask("POST", task, "/input", {"kind": "answer", "id": asked["id"], "text": "x"})).status == 400
    assert (await stage.ask("POST", task, "/input", {"kind": answer, "id": asked["id"]})).status == 200
    view = await stage.ended(task)
    assert view["state"] == "completed"
    (step,) = [step for step in await stage.steps(task) if step["tool"] == "Bash"]
    assert step["is_error"] == (answer == "reject")


@pytest.mark.parametrize(("answer", "state"), [("approve", "completed"), ("reject", "stopped")])
async def test_spending_is_asked_about(stage: Stage, answer: str, state: str) -> None:
    prompt = "tokens 10 1 0.11\nrun true\ntokens 10 1 0.01\nsleep 2\nrun true"
    task = await stage.create(prompt, approvals={"spend_usd": 0.1})
    asked = await question(stage, task, "spend")
    assert asked["arguments"]["usd"] >= 0.1
    assert (await stage.ask("POST", task, "/input", {"kind": answer, "id": asked["id"]})).status == 200
    assert (await stage.ended(task))["state"] == state


async def test_an_instruction_reaches_an_agent_that_works(stage: Stage) -> None:
    task = await begun(stage, await stage.create("\n".join(["sleep 0.2"] * 20)))
    said = {"kind": "instruct", "text": "edit steered.txt by hand"}
    assert (await stage.ask("POST", task, "/input", said)).status == 200
    await stage.ended(task)
    assert any("steered.txt" in str(step["arguments"]) for step in await stage.steps(task))


async def test_a_task_whose_sandbox_is_destroyed_has_failed(stage: Stage) -> None:
    task = await begun(stage, await stage.create(LONG))
    sandbox = (await stage.get(task))["sandbox"]
    assert (await stage.host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).status == 200
    view = await stage.ended(task)
    assert (view["state"], view["reason"]["code"]) == ("failed", "machine")
    assert "sandbox.lost" in await stage.kinds(task)


async def test_a_machine_that_dies_fails_a_task_that_may_lose_none(stage: Stage) -> None:
    task = await begun(stage, await stage.create(LONG, retries=0))
    sandbox = (await stage.get(task))["sandbox"]
    live = next(live for live in stage.host.sandboxes.machines() if live.sandbox.id == sandbox)
    await stage.host.engine.destroy(live.place.machine_id)
    view = await stage.ended(task)
    assert (view["state"], view["reason"]["code"]) == ("failed", "machine")


async def test_an_owners_rules_do_not_count_for_a_tasks_sandbox(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = stage.host.services.tasks.tools
    monkeypatch.setattr(type(stage.host.engine), "can_save", True)
    row = await tools.read(partial(tasks.get, task_id=await stage.create("sleep 600")))
    rules = sandbox_request(tools, row).rules
    assert [name for name, value in vars(rules).items() if value is None] == []


async def test_a_sandbox_that_is_kept_ends_by_itself(stage: Stage) -> None:
    view = await stage.ended(await stage.create("edit a.txt a", keep_minutes=5))
    sandbox = (await stage.host.ask("GET", f"/v1/sandboxes/{view['sandbox']}")).json
    assert (sandbox["state"], sandbox["next"]["action"]) == ("running", "destroy")
    assert sandbox["rules"]["timeout_sec"] == 300


async def test_a_long_output_is_cut_in_its_step_and_whole_as_an_artifact(stage: Stage) -> None:
    task = await stage.create("run seq 1 100000")
    await stage.ended(task)
    step = (await stage.steps(task))[-1]
    whole = "".join(f"{number}\n" for number in range(1, 100_001))
    assert step["output_bytes"] == len(whole)
    assert len(step["output"]) < 20_000
    reply = await stage.ask("GET", task, f"/artifacts/{step['output_artifact']}")
    assert reply.body.decode() == whole
    part = await stage.host.ask("GET", f"/v1/tasks/{task}/artifacts/{step['output_artifact']}", Range="bytes=10-29")
    assert (part.status, part.body.decode()) == (206, whole[10:30])


async def test_the_oldest_task_gets_the_room_first_and_a_queued_one_is_stopped_at_once() -> None:
    async with open_stage(slots=1) as stage:
        first = await begun(stage, await stage.create(LONG))
        others = [await stage.create(f"edit {number}.txt x") for number in range(3)]
        assert [(await stage.get(task))["state"] for task in others] == ["queued"] * 3
        assert (await stage.ask("POST", others[1], "/stop")).json["state"] == "stopped"
        states = (
            await stage.host.ask("POST", "/v1/sandboxes/states", {"ids": [f"sb-{others[0][3:]}", others[0]]})
        ).json
        assert set(states["states"].values()) == {"running", "queued"}
        await stage.ask("POST", first, "/stop")
        ends = [await stage.ended(task) for task in (others[0], others[2])]
        assert [view["state"] for view in ends] == ["completed", "completed"]
        assert ends[0]["started_ms"] < ends[1]["started_ms"]


@contextlib.contextmanager
def git_server(folder: Path, **options: Any) -> Iterator[GitServer]:
    with serve(folder, **options) as server:
        yield server


async def test_a_repository_is_cloned_worked_on_and_pushed_with_credentials_that_nobody_sees(
    stage: Stage, tmp_path: Path
) -> None:
    with git_server(tmp_path, users={"bot": "s3cret"}) as server:
        server.make("project", {"README.md": "hello\n"})
        url = server.url("project").replace("http://", "http://bot:s3cret@")
        task = await stage.create("run env; git remote -v\nedit new.txt new\ncommit Add new", repo=url, push=True)
        view = await stage.ended(task)
        assert view["state"] == "completed", view
        assert view["repo"] == server.url("project")
        assert view["branch"] == f"warren/{task}"
        head = server.head("project", f"refs/heads/{view['branch']}")
        assert head == view["result"]["head"] == view["result"]["pushed"]["to"]
        assert view["result"]["base"] == server.head("project")
        everything = str(view) + str(await stage.events(task)) + str(await stage.steps(task))
        assert "s3cret" not in everything


async def test_a_push_that_is_refused_costs_nothing_but_the_push(stage: Stage, tmp_path: Path) -> None:
    with git_server(tmp_path) as server:
        server.make("project", {"README.md": "hello\n"})
        base = server.head("project")
        fields = {"repo": server.url("project"), "push": True, "branch": "main"}
        task = await stage.create("edit new.txt new\ncommit Add new", **fields)
        view = await stage.ended(task)
        assert view["state"] == "completed", view
        assert view["result"]["pushed"]["refused"] == "protected"
        assert "git.refused" in await stage.kinds(task)
        assert server.head("project") == base


@pytest.mark.parametrize("answer", ["approve", "reject"])
async def test_a_push_at_the_end_waits_for_a_word(stage: Stage, tmp_path: Path, answer: str) -> None:
    with git_server(tmp_path) as server:
        server.make("project", {"README.md": "hello\n"})
        fields = {"repo": server.url("project"), "push": True, "approvals": {"push": True}}
        task = await stage.create("edit new.txt new", **fields)
        asked = await question(stage, task, "push")
        await stage.until(task, lambda view: view["state"] == "paused")
        assert (await stage.ask("POST", task, "/input", {"kind": answer, "id": asked["id"]})).status == 200
        view = await stage.ended(task)
        assert view["state"] == "completed", view
        pushed = server.head("project", f"refs/heads/{view['branch']}")
        assert pushed == (view["result"]["head"] if answer == "approve" else None)


async def test_a_repository_that_is_not_there_fails_the_task_and_says_why(stage: Stage, tmp_path: Path) -> None:
    with git_server(tmp_path) as server:
        task = await stage.create("say never", repo=server.url("nothing"))
        view = await stage.ended(task)
        assert (view["state"], view["reason"]["code"]) == ("failed", "clone")
        assert "agent.started" not in await stage.kinds(task)


async def test_a_sandbox_lost_while_its_push_waits_for_a_word_ends_the_task(stage: Stage, tmp_path: Path) -> None:
    with git_server(tmp_path) as server:
        server.make("project", {"README.md": "hello\n"})
        fields = {"repo": server.url("project"), "push": True, "approvals": {"push": True}}
        task = await stage.create("edit new.txt new", **fields)
        await question(stage, task, "push")
        sandbox = (await stage.get(task))["sandbox"]
        assert (await stage.host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).status in (200, 204)
        view = await stage.ended(task)
        assert (view["state"], view["waiting"]) == ("completed", [])
        assert view["result"]["pushed"]["refused"] == "machine_gone"
        assert view["result"]["archive"]["files"] > 0
        assert server.head("project", f"refs/heads/{view['branch']}") is None
