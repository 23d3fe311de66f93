"""Everything that a task's life is made of fails once, or is cut short there: the task ends all the same, and once."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from contract.ids import new_id
from contract.tickets import HEADER, Access
from poold.errors import GuestError
from tests.unit.poold.poold_fake_engine import FakeEngine
from tests.unit.poold.poold_fake_guest import refusal
from tests.unit.poold.poold_host import Host, open_host
from tests.unit.poold.poold_hostile import answer
from tests.unit.poold.test_poold_tasks_steering import create, kinds, running, until, view

pytestmark = pytest.mark.usefixtures("nothing_warm")

ONCE = ("task.running", "agent.ended", "task.archived", "task.completed")


@contextlib.asynccontextmanager
async def agents_end(engine: FakeEngine) -> Any:
    """Every agent that is begun during the block ends by itself."""

    async def forever() -> None:
        while True:
            for guest in list(engine.guests.values()):
                if guest.run.request and not guest.run.is_over:
                    guest.run.tell("agent.message", text="hello")
                    guest.run.end()
            await asyncio.sleep(0.001)

    task = asyncio.create_task(forever())
    try:
        yield
    finally:
        task.cancel()


@pytest.mark.parametrize("turns", [*range(0, 300, 12), *range(300, 900, 60)])
async def test_a_daemon_that_is_ended_at_any_turn_of_a_tasks_life_costs_nothing(tmp_path: Path, turns: int) -> None:
    engine = FakeEngine()
    name = new_id("tk", lambda count: turns.to_bytes(count, "big"))
    async with agents_end(engine):
        async with open_host(tmp_path, engine=engine) as host:
            ticket = host.gateway.sign("local", Access.WRITE, name)
            reply = await host.knock(
                "POST", "/v1/tasks", {"agent": "mock", "prompt": "x", "network": {}}, **{HEADER: ticket}
            )
            assert reply.status == 202
            for _ in range(turns):
                await asyncio.sleep(0)
        async with open_host(tmp_path, engine=engine, recover=True) as host:
            found = await until(host, name, phase="done")
            assert (found["state"], found["result"]["archive"]["files"]) == ("completed", 1)
            told = await kinds(host, name)
            assert [told.count(kind) for kind in ONCE] == [1] * len(ONCE), told
            assert found["usage"]["steps"] == 1
            await host.assert_nothing_is_used()


@pytest.mark.parametrize("path", ["/git/commit", "/git/log", "/git/diff", "/archive"])
@pytest.mark.parametrize("said", [refusal(409, "git_failed"), refusal(500, "internal"), answer(b"nonsense")])
async def test_work_that_cannot_be_kept_is_told_and_the_task_ends(host: Host, path: str, said: bytes) -> None:
    task, sandbox, run = await running(host)
    host.engine.guest_of(sandbox).says[path] = said
    run.end()
    found = await until(host, task, phase="done")
    assert found["state"] == "completed"
    assert found["result"]["problems"], found["result"]
    assert (await kinds(host, task))[-1] == "task.completed"


@pytest.mark.parametrize("path", ["/run", "/git/policy"])
async def test_a_machine_that_refuses_to_begin_fails_the_task(host: Host, path: str) -> None:
    host.engine.guests_say[path] = refusal(404, "not_found")
    found = await until(host, await create(host), phase="done")
    assert (found["state"], found["reason"]["code"]) == ("failed", "agent" if path == "/run" else "clone")


async def test_a_stop_while_its_repository_is_cloned_gives_that_up(host: Host) -> None:
    host.engine.guests_say["/git/clone"] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"  # it never ends
    task = await create(host, repo="https://git.example.com/a.git", network=None)
    sandbox = f"sb-{task[3:]}"
    await until(host, task, phase="clone", state="planning")
    await host.until(lambda: "/git/clone" in host.engine.guest_of(sandbox).asked)
    await host.ask("POST", f"/v1/tasks/{task}/stop")
    found = await until(host, task, phase="done")
    assert (found["state"], found["result"]) == ("stopped", None)
    assert await host.state(sandbox) == "stopped"


async def test_a_run_that_breaks_off_is_followed_again_from_where_it_was(host: Host) -> None:
    task, sandbox, run = await running(host)
    run.tell_raw(b"event: agent.message\ndata: {\n\n")  # nonsense: the stream is given up
    await asyncio.sleep(0.1)
    run.events[-1] = b'id: 2\nevent: agent.message\ndata: {"text": "well"}\n\n'
    run.end()
    found = await until(host, task, phase="done")
    assert found["state"] == "completed"
    assert (await kinds(host, task)).count("agent.message") == 1
    assert host.engine.guest_of(sandbox).asked.count("/run/events?after=1") >= 1


async def test_a_machine_that_ends_while_its_work_is_kept_costs_what_was_not_kept_yet(host: Host) -> None:
    task, sandbox, run = await running(host)
    guest = host.engine.guest_of(sandbox)
    guest.says["/archive"] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"  # and nothing comes
    run.end()
    await host.until(lambda: any(path.startswith("/archive") for path in guest.asked))
    host.engine.kill(host.engine.machine_of(sandbox), "killed")
    found = await until(host, task, phase="done")
    assert (found["state"], found["result"]["archive"], found["result"]["diff"]["files"]) == ("completed", None, 1)


async def test_a_stop_counts_more_than_the_end_that_is_under_way(host: Host) -> None:
    task, sandbox, run = await running(host)
    guest = host.engine.guest_of(sandbox)
    guest.says["/git/commit"] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    run.end()
    await host.until(lambda: any(path.startswith("/git/commit") for path in guest.asked))
    await host.ask("POST", f"/v1/tasks/{task}/stop")
    del guest.says["/git/commit"]
    for connection in list((await host.sandboxes.peek(sandbox))._open):
        connection.fail(GuestError("cut off"))
    assert (await until(host, task, phase="done"))["state"] == "stopped"


async def test_a_guest_that_floods_is_heard_more_slowly_and_costs_nobody_else(host: Host) -> None:
    task, _, run = await running(host, caps={"steps": 1_000_000})
    for number in range(6000):
        run.tell("agent.log", stream="stdout", text=str(number))
    await asyncio.sleep(1.0)
    told = (await host.ask("GET", f"/v1/tasks/{task}/events?limit=1000&after=4500")).json["events"]
    assert len(told) < 1000
    assert (await view(host, task))["state"] == "running"
    await host.ask("POST", f"/v1/tasks/{task}/stop")
