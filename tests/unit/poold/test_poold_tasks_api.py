"""The routes of tasks: who may, what is refused, what is said twice, what can be followed."""

import asyncio
import base64
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from contract.ids import new_id
from contract.network import Mode, Network
from contract.tickets import HEADER, Access
from poold.ledger import tasks
from poold.tasks.urls import Url
from tests.unit.poold.poold_fake_run import PNG
from tests.unit.poold.poold_host import Host, Reply, open_host
from tests.unit.poold.poold_task_refusals import OPERATORS_TASKS, TASKS
from tests.unit.poold.test_poold_tasks_steering import create, kinds, running, say, until, view


async def test_every_bad_request_about_tasks_names_its_field_and_changes_nothing(host: Host) -> None:
    for method, path, body, status, code, field in TASKS:
        reply = await host.ask(method, path, body)
        assert (reply.status, reply.code) == (status, code), (method, path, reply.body[:300])
        assert field is None or reply.json["error"]["field"] == field, reply.body
    for method, path, body, status, code, _ in OPERATORS_TASKS:
        reply = await host.admin(method, path, body)
        assert (reply.status, reply.code) == (status, code), (method, path, reply.body[:300])
    assert (await host.ask("GET", "/v1/tasks")).json == {"tasks": [], "next": None}
    assert not list((host.ledger_path.parent / "tasks").glob("*/vault"))
    await host.assert_nothing_is_used()


async def test_a_task_is_its_owners_and_an_admins(host: Host) -> None:
    task, _, run = await running(host)
    for method, what in (("GET", ""), ("GET", "/events"), ("GET", "/request"), ("POST", "/stop"), ("POST", "/input")):
        reply = await host.ask(method, f"/v1/tasks/{task}{what}", owner="mallory")
        assert (reply.status, reply.code) == (404, "not_found")
    assert (await host.ask("GET", "/v1/tasks", owner="mallory")).json["tasks"] == []
    ticket = host.gateway.sign("root", Access.ADMIN, task)
    assert (await host.knock("GET", f"/v1/tasks/{task}", **{HEADER: ticket})).json["id"] == task
    other = host.gateway.sign("local", Access.WRITE, "tk-aaaaaaaaaaaaaaaa")
    assert (await host.knock("GET", f"/v1/tasks/{task}", **{HEADER: other})).status in (401, 403)
    run.end()
    await until(host, task, phase="done")


async def test_a_create_that_comes_twice_is_one_task(host: Host) -> None:
    name = new_id("tk", lambda count: bytes(range(count)))
    headers = {HEADER: host.gateway.sign("ada", Access.WRITE, name), "Warren-Asked": "0" * 64}
    body = {"agent": "mock", "prompt": "Do it.", "network": {}}
    replies: list[Reply] = await asyncio.gather(*(host.knock("POST", "/v1/tasks", body, **headers) for _ in range(3)))
    assert {(reply.status, reply.json["id"], reply.headers["location"]) for reply in replies} == {
        (202, name, f"/v1/tasks/{name}")
    }
    assert sum("idempotent-replayed" in reply.headers for reply in replies) == 2
    again = await host.knock("POST", "/v1/tasks", body, **{HEADER: headers[HEADER]})
    assert (again.status, again.code) == (409, "exists")
    again = await host.knock("POST", "/v1/tasks", {**body, "env": {"A": "stolen"}}, **{HEADER: headers[HEADER]})
    assert again.code == "exists"
    assert host.services.tasks.tools.vault.get(name).env == {}
    other = await host.knock("POST", "/v1/tasks", body, **{**headers, "Warren-Asked": "1" * 64})
    assert (other.status, other.code) == (422, "key_reused")


async def test_what_is_secret_is_in_no_reply_no_row_and_no_event(host: Host) -> None:
    fields = {
        "repo": "https://bot:hunter2@git.example.com/a.git",
        "env": {"TOKEN": "hunter3"},
        "webhook": {"url": "https://hook.example.com/", "secret": "hunter4"},
        "network": None,
    }
    task, _, run = await running(host, **fields)
    assert run.request["env"] == {"TOKEN": "hunter3"}
    (cloned,) = [request for path, request in run.asked if path == "git/clone"]
    assert cloned["credentials"] == {"username": "bot", "password": "hunter2"}
    run.end()
    await until(host, task, phase="done")
    told = [await view(host, task), await kinds(host, task)]
    told += [(await host.ask("GET", f"/v1/tasks/{task}/{what}")).body for what in ("events?limit=1000", "request")]
    told += [[row.view() for row in await host.audit()]]
    assert "hunter" not in str(told)
    for path in host.ledger_path.parent.glob("ledger.db*"):
        assert b"hunter" not in path.read_bytes()


async def test_a_retry_has_the_same_request_and_the_same_secrets(host: Host) -> None:
    fields = {"repo": "https://bot:pw@git.example.com/a.git", "env": {"A": "1", "B": "2"}, "network": None}
    task, _, run = await running(host, caps={"steps": 7}, **fields)
    run.end("failure", error="no luck")
    await until(host, task, phase="done", state="failed")
    wanted = (await host.ask("GET", f"/v1/tasks/{task}/request")).json
    assert (wanted["prompt"], wanted["caps"]["steps"], wanted["branch"]) == ("Do it.", 7, None)
    again, _, second = await running(host, **{**wanted, "env": {"B": "3"}, "retry_of": task})
    assert ((await view(host, again))["retry_of"], second.request["env"]) == (task, {"A": "1", "B": "3"})
    (cloned,) = [request for path, request in second.asked if path == "git/clone"]
    assert cloned["credentials"]["password"] == "pw"
    stolen = await host.ask("POST", "/v1/tasks", {**wanted, "retry_of": task}, owner="mallory")
    assert (stolen.status, stolen.json["error"]["field"]) == (400, "retry_of")
    third = await host.admin("POST", f"/v1/tasks/{task}/retry", {"prompt": "Again."})
    assert (third.status, third.json["prompt"], third.json["owner"]) == (202, "Again.", "local")


async def test_the_operators_retry_reaches_no_more_than_the_key_of_the_first_allowed(host: Host) -> None:
    name, network = new_id("tk", lambda count: bytes(range(count))), Network(Mode.DENY)
    ticket = host.gateway.sign("ada", Access.WRITE, name, network=network)
    body = {"agent": "mock", "prompt": "Do it."}
    made = await host.knock("POST", "/v1/tasks", body, **{HEADER: ticket, "Warren-Asked": "0" * 64})
    assert made.status == 202, made.body
    again = await host.admin("POST", f"/v1/tasks/{name}/retry")
    assert (again.status, again.json["owner"]) == (202, "ada")
    tools = host.services.tasks.tools
    rows = [await tools.read(partial(tasks.get, task_id=task)) for task in (name, again.json["id"])]
    assert [row.key_network for row in rows] == [network, network]


async def test_a_host_with_a_full_queue_takes_no_more(tmp_path: Path, nothing_warm: None) -> None:
    async with open_host(tmp_path, slots=1, settings={"POOLD_TASKS_QUEUE": "2"}) as host:
        await running(host)
        queued = [await create(host) for _ in range(2)]
        reply = await host.ask("POST", "/v1/tasks", {"agent": "mock", "prompt": "x", "network": {}})
        assert (reply.status, reply.code) == (503, "no_capacity")
        assert len(list((tmp_path / "tasks").glob("*/vault"))) == 3
        await host.ask("POST", f"/v1/tasks/{queued[0]}/stop")
        await create(host)


async def test_a_stream_begins_behind_the_last_event_that_was_seen_and_ends_with_the_task(host: Host) -> None:
    task, _, run = await running(host)
    async with host.follow(f"/v1/tasks/{task}/events") as stream:
        assert (await stream.next() or (0,))[0] == 1
        run.end()
        rest = await stream.rest()
    assert [number for number, _, _ in rest] == list(range(2, len(rest) + 2))
    assert (rest[-1][1], rest[-1][2]["by"]) == ("task.completed", "host")
    async with host.follow(f"/v1/tasks/{task}/events", Last_Event_ID=str(len(rest))) as stream:
        assert [kind for _, kind, _ in await stream.rest()] == ["task.completed"]


async def test_a_stream_from_an_event_that_there_is_not_yet_is_refused(host: Host) -> None:
    task, sandbox, run = await running(host)
    for path in (f"/v1/tasks/{task}/events", f"/v1/sandboxes/{sandbox}/events"):
        reply = await host.ask("GET", f"{path}?after=1000", Accept="text/event-stream")
        assert (reply.status, reply.json["error"]["field"]) == (400, "after")
        assert (await host.ask("GET", f"{path}?after=1000")).json["events"] == []
    run.end()
    await until(host, task, phase="done")
    async with host.follow(f"/v1/tasks/{task}/events?after=1000") as stream:
        assert await stream.rest() == []


async def test_many_who_follow_a_task_are_all_told_and_one_who_does_not_read_slows_nobody(host: Host) -> None:
    task, _, run = await running(host, caps={"steps": 1000})
    path = f"/v1/tasks/{task}/events"
    idle_reader, idle = await asyncio.open_connection("127.0.0.1", host.port, limit=1)
    idle.write(host.head("GET", path, "Accept: text/event-stream"))

    async def follow() -> list[str]:
        async with host.follow(path) as stream:
            return [kind for _, kind, _ in await stream.rest()]

    following = [asyncio.create_task(follow()) for _ in range(50)]
    for number in range(300):
        run.tell("agent.message", text=f"{number} " + "x" * 2000)
    run.end()
    everything = await asyncio.gather(*following)
    assert all(told == everything[0] for told in everything)
    assert (everything[0].count("agent.message"), everything[0][-1]) == (300, "task.completed")
    idle.close()
    del idle_reader


async def test_states_answer_for_tasks_and_for_their_sandboxes(tmp_path: Path, nothing_warm: None) -> None:
    async with open_host(tmp_path, slots=1) as host:
        task, sandbox, run = await running(host)
        waits = await create(host)
        ids = [task, sandbox, waits, f"sb-{waits[3:]}", "tk-aaaaaaaaaaaaaaaa", "sb-aaaaaaaaaaaaaaaa", "x"]
        states = (await host.ask("POST", "/v1/sandboxes/states", {"ids": ids})).json["states"]
        assert [states[name] for name in ids] == ["running", "running", "queued", "running", None, None, None]
        living = (await host.ask("GET", "/v1/owners/local/sandboxes")).json["rows"]
        assert {row["id"] for row in living} == {sandbox, f"sb-{waits[3:]}"}
        await host.ask("POST", f"/v1/tasks/{waits}/stop")
        run.end()
        await until(host, task, phase="done")
        states = (await host.ask("POST", "/v1/sandboxes/states", {"ids": ids})).json["states"]
        assert [states[name] for name in ids[:4]] == ["completed", "stopped", "stopped", "stopped"]


async def test_a_webhook_is_told_of_the_end(tmp_path: Path) -> None:
    heard: list[tuple[str, Mapping[str, str], Any]] = []

    async def post(url: Url, headers: Mapping[str, str], body: bytes) -> int:
        heard.append((str(url), headers, orjson.loads(body)))
        return 204

    async with open_host(tmp_path, post=post) as host:
        task, _, run = await running(host, webhook={"url": "https://hook.example.com/a", "secret": "s"})
        run.end()
        await host.until(lambda: bool(heard))
        ((url, headers, told),) = heard
        assert url == "https://hook.example.com/a"
        assert (told["event"], told["task"]["id"]) == ("task.completed", task)
        assert any(name.lower().startswith("warren-signature") for name in headers)


async def test_a_webhook_that_cannot_be_signed_keeps_no_other_waiting(tmp_path: Path) -> None:
    heard: list[str] = []

    async def post(url: Url, _headers: Mapping[str, str], _body: bytes) -> int:
        heard.append(str(url))
        return 204

    async with open_host(tmp_path, post=post) as host:
        for path in ("damaged", "whole"):
            task, _, run = await running(host, webhook={"url": f"https://hook.example.com/{path}", "secret": "s"})
            if path == "damaged":
                (host.ledger_path.parent / "tasks" / task / "vault").write_bytes(b"{")
            run.end()
            await until(host, task, phase="done")
        await host.until(lambda: bool(heard))
        assert heard == ["https://hook.example.com/whole"]


async def test_what_is_done_for_all_tasks_is_done_again_after_something_that_nobody_foresaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poold.tasks.host.AGAIN_S", 0.01)
    heard: list[str] = []

    async def post(url: Url, _headers: Mapping[str, str], _body: bytes) -> int:
        heard.append(str(url))
        if len(heard) == 1:
            raise RuntimeError("nobody foresaw this")
        return 204

    async with open_host(tmp_path, post=post) as host:
        _, _, run = await running(host, webhook={"url": "https://hook.example.com/a"})
        run.end()
        await host.until(lambda: len(heard) == 2)


@pytest.mark.parametrize("kind", ["approve", "answer", "instruct"])
async def test_what_nobody_waits_for_is_refused(host: Host, kind: str) -> None:
    task = await create(host, agent="mock")
    await until(host, task, state="running")
    reply = await say(host, task, kind, None if kind == "instruct" else "ap-1", "x")
    assert reply.status == (200 if kind == "instruct" else 409)
    run = host.engine.guest_of(f"sb-{task[3:]}").run
    run.end()
    await until(host, task, phase="done")
    assert (await say(host, task, kind, None, "x")).code == "wrong_state"


async def test_a_browsers_picture_is_passed_on_and_is_an_artifact_of_its_task(host: Host) -> None:
    task, sandbox, run = await running(host)
    path = f"/v1/sandboxes/{sandbox}/browser"
    reply = await host.ask("POST", f"{path}/open", {"url": "https://a.example.com"})
    assert (reply.json["action"], base64.b64decode(reply.json["screenshot"])) == ("open", PNG)
    assert (await host.ask("POST", f"{path}/fly", {})).status == 404
    rows = [row for row in await host.audit(sandbox=sandbox) if row.action.startswith("browser.")]
    assert [row.action for row in rows] == ["browser.open", "browser.open.end"]
    (kept,) = (await host.ask("GET", f"/v1/tasks/{task}/artifacts")).json["artifacts"]
    assert (await host.ask("GET", f"/v1/tasks/{task}/artifacts/{kept['name']}")).body == PNG
    run.end()
    await until(host, task, phase="done")


async def test_metrics_count_tasks(host: Host) -> None:
    task, _, run = await running(host)
    run.end()
    await until(host, task, phase="done")
    told = (await host.ask("GET", "/metrics")).body.decode()
    for line in ('poold_tasks{state="completed"} 1', 'poold_tasks_total{outcome="completed"} 1'):
        assert line in told
    assert "poold_task_first_event_seconds_count 1" in told
