"""Tasks whose machines can be put on disk: pauses, questions that wait long, what others do to their sandboxes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from poold.ledger import sandboxes
from poold.tasks import runner
from poold.tasks.life import Life
from tests.unit.poold.poold_fake_engine import FakeEngine
from tests.unit.poold.poold_fake_run import FakeRun
from tests.unit.poold.poold_host import LIMIT_S, Host, open_host

FINAL = ("completed", "failed", "stopped")
View = dict[str, Any]


async def create(host: Host, **fields: Any) -> str:
    reply = await host.ask("POST", "/v1/tasks", {"agent": "mock", "prompt": "Do it.", "network": {}, **fields})
    assert reply.status == 202, reply.body
    name: str = reply.json["id"]
    return name


async def view(host: Host, task: str) -> View:
    found: View = (await host.ask("GET", f"/v1/tasks/{task}")).json
    return found


async def until(host: Host, task: str, **wanted: object) -> View:
    async with asyncio.timeout(LIMIT_S):
        while {name: (found := await view(host, task))[name] for name in wanted} != wanted:
            await asyncio.sleep(0.01)
    return found


async def running(host: Host, **fields: Any) -> tuple[str, str, FakeRun]:
    """A task whose agent has begun, its sandbox, and the run in it."""
    task = await create(host, **fields)
    await until(host, task, state="running")
    sandbox = f"sb-{task[3:]}"
    run = host.engine.guest_of(sandbox).run
    run.tell("agent.started", agent="mock", model="m")
    await host.until(lambda: bool(run.request))
    return task, sandbox, run


async def say(host: Host, task: str, kind: str, name: str | None = None, text: str = "") -> Any:
    return await host.ask("POST", f"/v1/tasks/{task}/input", {"kind": kind, "id": name, "text": text})


async def kinds(host: Host, task: str) -> list[str]:
    reply = await host.ask("GET", f"/v1/tasks/{task}/events?limit=1000")
    return [event["kind"] for event in reply.json["events"]]


async def test_a_task_that_is_paused_has_its_machine_on_disk_and_goes_on_when_it_is_resumed(host: Host) -> None:
    task, sandbox, run = await running(host)
    reply = await host.ask("POST", f"/v1/tasks/{task}/pause")
    assert (reply.json["state"], await host.state(sandbox)) == ("paused", "paused")
    assert (await host.ask("POST", f"/v1/tasks/{task}/pause")).json["state"] == "paused"
    assert (await host.ask("POST", f"/v1/tasks/{task}/resume")).json["state"] == "running"
    assert (await host.ask("POST", f"/v1/tasks/{task}/resume")).json["state"] == "running"
    run.end()
    await until(host, task, phase="done", state="completed")
    told = await kinds(host, task)
    wanted = ["sandbox.paused", "task.paused", "sandbox.resumed", "task.resumed", "task.completed"]
    assert [kind for kind in told if kind in wanted] == wanted


async def test_a_paused_task_is_not_worked_on_and_its_time_stands_still(host: Host) -> None:
    task, _, _ = await running(host)
    await host.ask("POST", f"/v1/tasks/{task}/pause")
    before = (await view(host, task))["usage"]
    await asyncio.sleep(0.2)
    assert (await view(host, task))["usage"] == before


async def test_a_question_that_is_open_for_long_has_its_machine_saved_and_the_answer_brings_it_back(host: Host) -> None:
    task, sandbox, run = await running(host, approvals={"pause_after_sec": 1})
    run.tell("approval.requested", id="ap-1", kind="question", text="Which colour?")
    found = await until(host, task, state="paused")
    assert [each["id"] for each in found["waiting"]] == ["ap-1"]
    await host.until_state(sandbox, "paused")
    assert (await host.ask("POST", f"/v1/tasks/{task}/resume")).code == "wrong_state"
    assert (await say(host, task, "answer", "ap-1", "blue")).status == 200
    await host.until(lambda: run.said == [{"kind": "answer", "id": "ap-1", "text": "blue"}])
    await until(host, task, state="running", waiting=[])
    run.end()
    await until(host, task, state="completed")


async def test_a_task_that_spends_is_put_on_disk_until_somebody_says_yes(host: Host) -> None:
    task, sandbox, run = await running(host, approvals={"spend_usd": 0.1})
    run.tell("agent.usage", input_tokens=1, output_tokens=1, usd=0.25)
    found = await until(host, task, state="paused")
    assert [(each["id"], each["kind"]) for each in found["waiting"]] == [("sp-2", "spend")]
    await host.until_state(sandbox, "paused")
    assert (await say(host, task, "approve")).status == 200
    await until(host, task, state="running")
    assert run.said == []
    run.end()
    assert (await until(host, task, state="completed"))["usage"]["usd"] == 0.25


async def test_who_pauses_the_sandbox_pauses_its_task_and_who_resumes_it_resumes_that(host: Host) -> None:
    task, sandbox, run = await running(host)
    await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")
    await until(host, task, state="paused")
    await host.ask("POST", f"/v1/sandboxes/{sandbox}/resume")
    await until(host, task, state="running")
    await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")
    await until(host, task, state="paused")
    assert (await host.ask("POST", f"/v1/tasks/{task}/resume")).json["state"] == "running"
    run.end()
    await until(host, task, state="completed")


async def test_a_paused_task_that_is_stopped_is_woken_for_its_work_to_be_kept(host: Host) -> None:
    task, sandbox, run = await running(host)
    await host.ask("POST", f"/v1/tasks/{task}/pause")
    await host.ask("POST", f"/v1/tasks/{task}/stop")
    found = await until(host, task, phase="done")
    assert (found["state"], found["result"]["archive"]["files"]) == ("stopped", 1)
    assert ("run/stop", {"grace_ms": 5000}) in run.asked
    assert await host.state(sandbox) == "stopped"


async def test_a_host_that_is_refused_is_asked_about_once_and_allowed_when_somebody_says_so(host: Host) -> None:
    task, sandbox, run = await running(host, network={"policy": "list"}, approvals={"hosts": True})
    assert (await host.sandboxes.get(sandbox)).network.hold_sec == 120
    for at_ms in (1, 2):
        data = {"name": "web.example.com", "address": "192.0.2.1", "port": 443, "until_ms": at_ms}
        await host.services.ledger.write(
            lambda db, data=data: sandboxes.tell(db, sandbox, "egress_waiting", data, at_ms=1)
        )
    found = await until(host, task, state="paused")
    assert [(each["id"], each["kind"]) for each in found["waiting"]] == [("ho-1", "host")]
    assert (await say(host, task, "approve", "ho-1")).status == 200
    await until(host, task, state="running")
    async with asyncio.timeout(LIMIT_S):
        while not (allowed := (await host.sandboxes.get(sandbox)).network.allow):
            await asyncio.sleep(0.01)
    assert [(rule.host, rule.ports) for rule in allowed] == [("web.example.com", (443,))]
    run.end()
    await until(host, task, state="completed")


async def test_a_host_that_no_policy_can_have_keeps_no_other_answer_waiting(host: Host) -> None:
    task, sandbox, run = await running(host, network={"policy": "list"}, approvals={"hosts": True})
    data = {"name": "no_name_.at.all.7", "address": "192.0.2.1", "port": 443}
    await host.services.ledger.write(lambda db: sandboxes.tell(db, sandbox, "egress_waiting", data, at_ms=1))
    await until(host, task, state="paused")
    assert (await say(host, task, "approve", "ho-1")).status == 200
    run.tell("approval.requested", id="ap-1", kind="question", text="Which colour?")
    async with asyncio.timeout(LIMIT_S):
        while "ap-1" not in [each["id"] for each in (await view(host, task))["waiting"]]:
            await asyncio.sleep(0.01)
    assert (await say(host, task, "answer", "ap-1", "Blue.")).status == 200
    await host.until(lambda: [each["text"] for each in run.said] == ["Blue."])
    assert "approval.undelivered" in await kinds(host, task)
    run.end()
    await until(host, task, state="completed")


async def test_the_agents_own_push_is_done_by_the_host_and_it_hears_what_came_of_it(host: Host) -> None:
    fields = {"repo": "https://bot:pw@git.example.com/a.git", "network": None, "approvals": {"push": True}}
    task, _, run = await running(host, **fields)
    run.tell("git.push_requested", id="ap-7", branch="agent/a", commit="b" * 40)
    found = await until(host, task, state="paused")
    assert [(each["id"], each["kind"]) for each in found["waiting"]] == [("ap-7", "push")]
    assert (await say(host, task, "approve", "ap-7")).status == 200
    await host.until(lambda: bool(run.said))
    (pushed,) = [request for path, request in run.asked if path == "git/push"]
    assert (pushed["branch"], pushed["credentials"]) == ("agent/a", {"username": "bot", "password": "pw"})
    assert (run.said[0]["id"], run.said[0]["kind"]) == ("ap-7", "approve")
    assert "git.pushed" in await kinds(host, task)
    run.end()
    await until(host, task, state="completed")


async def test_a_guest_cannot_tell_what_is_the_hosts_to_tell(host: Host) -> None:
    task, _, run = await running(host)
    run.tell("task.completed", state="completed")
    run.tell("cap.reached", cap="steps")
    run.end()
    await until(host, task, state="completed")
    told = await kinds(host, task)
    assert (told.count("task.completed"), told.count("cap.reached")) == (1, 0)


async def test_a_task_survives_a_restart_while_it_is_paused(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with open_host(tmp_path, engine=engine) as host:
        task, sandbox, run = await running(host)
        await host.ask("POST", f"/v1/tasks/{task}/pause")
    async with open_host(tmp_path, engine=engine, recover=True) as host:
        assert ((await view(host, task))["state"], await host.state(sandbox)) == ("paused", "paused")
        assert (await host.ask("POST", f"/v1/tasks/{task}/resume")).json["state"] == "running"
        run.end()
        await until(host, task, phase="done", state="completed")


async def test_a_machine_that_fails_to_start_is_tried_with_another(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.broken.add("restore")
        task = await create(host)
        found = await until(host, task, phase="done")
        assert (found["state"], found["reason"]["code"]) == ("failed", "machine")
        host.engine.broken.clear()
        host.engine.guests_say.clear()
        await host.assert_nothing_is_used()


async def test_a_stop_while_its_machine_starts_undoes_that(tmp_path: Path, nothing_warm: None) -> None:
    async with open_host(tmp_path) as host:
        host.engine.held.add("restore")
        task = await create(host)
        await host.until(lambda: host.engine.calls["restore"] == 1)
        stopping = asyncio.create_task(host.ask("POST", f"/v1/tasks/{task}/stop"))
        await asyncio.sleep(0.05)
        host.engine.held.clear()
        await stopping
        found = await until(host, task, phase="done")
        assert (found["state"], found["result"]) == ("stopped", None)
        await host.assert_nothing_is_used()


async def test_what_nobody_foresaw_costs_one_step_of_the_end_and_not_the_end(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr("poold.tasks.keeping.archive", broken)
    task, sandbox, run = await running(host)
    run.end()
    found = await until(host, task, phase="done")
    assert (found["state"], found["result"]["archive"]) == ("completed", None)
    assert list(found["result"]["problems"]) == ["archive"]
    assert found["result"]["head"] is not None
    assert await host.state(sandbox) == "stopped"


async def test_a_task_whose_runner_fails_again_and_again_ends_all_the_same(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes: list[str] = []

    async def crashing(life: Life) -> None:
        if len(crashes) < 20:
            crashes.append(life.id)
            raise RuntimeError("nobody foresaw this")
        await runner.live(life)

    monkeypatch.setattr("poold.tasks.host.live", crashing)
    monkeypatch.setattr("poold.tasks.host.AGAIN_S", 0.001)
    task = await create(host)
    found = await until(host, task, phase="done")
    assert (found["state"], found["reason"]["code"]) == ("failed", "internal")


async def test_a_host_that_is_drained_leaves_its_queue_alone(tmp_path: Path) -> None:
    async with open_host(tmp_path, slots=1) as host:
        _, _, run = await running(host)
        task = await create(host)
        host.sandboxes.is_draining = True
        run.end()
        await host.until(lambda: host.services.tasks.tools.means.pool.places.free == 1)
        await asyncio.sleep(0.5)
        assert await kinds(host, task) == ["task.queued"]
        host.sandboxes.is_draining = False
        await until(host, task, state="running")
