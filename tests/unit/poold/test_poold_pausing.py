"""Pausing and resuming, broken at each step by an error, by a cancellation and by the machine's death."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from poold.ledger.driver import sqlite3
from tests.unit.poold.poold_fake_guest import FakeGuest, refusal
from tests.unit.poold.poold_host import LIMIT_S, Host, Reply, open_host
from tests.unit.poold.poold_states import (
    NOTHING,
    ONE,
    assert_failed,
    assert_paused,
    assert_runs,
    in_use,
    pause,
    resume,
    view,
)

pytestmark = pytest.mark.usefixtures("nothing_warm")

BROKEN_LEDGER = (
    "CREATE TRIGGER broken BEFORE UPDATE ON sandboxes WHEN new.state = '{}' BEGIN SELECT RAISE(ABORT, 'no'); END"
)


async def cancelled_at(host: Host, step: str, work: Awaitable[object]) -> None:
    """Begin `work`, cancel it while the engine is in `step`, and let the engine go on."""
    before = host.engine.calls[step]
    host.engine.held.add(step)
    task = asyncio.ensure_future(work)
    await host.until(lambda: host.engine.calls[step] > before)
    task.cancel()
    await asyncio.sleep(0.01)
    host.engine.held.clear()
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(asyncio.CancelledError):
            await task


async def died_at(host: Host, step: str, ask: Callable[[Host, str], Awaitable[Reply]], sandbox: str) -> Reply:
    """Begin something, and let the machine die while the engine is in `step`."""
    before = host.engine.calls[step]
    host.engine.held.add(step)
    asking = asyncio.ensure_future(ask(host, sandbox))
    await host.until(lambda: host.engine.calls[step] > before)
    host.engine.kill(host.engine.machine_of(sandbox), "killed by signal 9")
    host.engine.held.clear()
    return await asking


# What should be.


async def test_a_paused_sandbox_uses_nothing_and_comes_back_as_it_was(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(env={"A": "b"}, metadata={"kept": "yes"})
        before = await view(host, sandbox)
        await host.file("PUT", sandbox, "/kept", b"content")
        paused = await pause(host, sandbox)
        assert (paused.status, paused.json["state"]) == (200, "paused")
        assert paused.json["paused_ms"] > before["started_ms"]
        assert in_use(host) == NOTHING
        for _ in range(3):
            back = await resume(host, sandbox)
            assert (back.status, back.json["state"], back.json["paused_ms"]) == (200, "running", None)
            assert back.json["expires_ms"] > before["expires_ms"]
            assert (back.json["started_ms"], back.json["metadata"]) == (before["started_ms"], {"kept": "yes"})
            assert (await host.file("GET", sandbox, "/kept")).body == b"content"
            assert host.engine.guest_of(sandbox).identity["env"] == {"A": "b"}
            await assert_runs(host, sandbox)
            await pause(host, sandbox)
        assert host.engine.guest_of(sandbox).identity["generation"] == 4
        await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        assert host.engine.saved == set()
        await host.assert_nothing_is_used()


async def test_pausing_and_resuming_are_told_in_the_timeline_and_in_the_audit(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause", X_Request_Id="my-pause")
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/resume", X_Request_Id="my-resume")
        events = (await host.ask("GET", f"/v1/sandboxes/{sandbox}/events")).json["events"]
        kinds = [event["kind"] for event in events]
        assert kinds == ["created", "starting", "running", "saving", "paused", "starting", "resumed"]
        assert events[4]["data"]["bytes"] == 2
        assert events[6]["data"]["paused_for_ms"] >= 0
        told = {row.action: row.request for row in await host.audit(sandbox=sandbox)}
        assert (told["sandbox.pause"], told["sandbox.resume"]) == ("my-pause", "my-resume")


async def test_doing_it_twice_changes_nothing(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        before = await view(host, sandbox)
        assert (await resume(host, sandbox)).json == before
        first = (await pause(host, sandbox)).json
        assert (await pause(host, sandbox)).json == first
        assert host.engine.calls["save"] == 1
        await resume(host, sandbox)
        assert (await resume(host, sandbox)).json == await view(host, sandbox)
        assert host.engine.calls["load"] == 1


async def test_what_has_ended_is_neither_paused_nor_resumed(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        stopped, failed = await host.create(), await host.create()
        await host.ask("DELETE", f"/v1/sandboxes/{stopped}")
        for reply in (await pause(host, stopped), await resume(host, stopped)):
            assert (reply.status, reply.code, reply.json["error"]["state"]) == (409, "wrong_state", "stopped")
        host.engine.kill(host.engine.machine_of(failed), "killed by signal 9")
        await host.until(lambda: in_use(host) == NOTHING)
        assert (await pause(host, failed)).code == "machine_died"
        assert (await resume(host, failed)).code == "wrong_state"


async def test_a_paused_sandbox_refuses_what_needs_a_machine(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        for reply in (
            await host.exec(sandbox, "echo"),
            await host.file("GET", sandbox, "/a"),
            await host.file("PUT", sandbox, "/a", b"x"),
            await host.ask("GET", f"/v1/sandboxes/{sandbox}/health"),
            await host.ask("GET", f"/v1/sandboxes/{sandbox}/logs"),
        ):
            assert (reply.status, reply.code, reply.json["error"]["state"]) == (409, "wrong_state", "paused")
        assert host.engine.calls["load"] == 0


async def test_what_is_under_way_hears_that_it_was_paused(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        path = f"/v1/sandboxes/{sandbox}/exec"
        running = asyncio.create_task(host.exec(sandbox, "hang"))
        streaming = asyncio.create_task(host.ask("POST", path, {"cmd": "hang"}, Accept="text/event-stream"))
        await host.until(lambda: host.engine.guest_of(sandbox).streams == 2)
        await pause(host, sandbox)
        assert ((await running).status, (await running).code) == (409, "sandbox_paused")
        assert (await streaming).events[-1][1]["code"] == "sandbox_paused"


async def test_a_full_host_resumes_when_there_is_room_again(tmp_path: Path) -> None:
    async with open_host(tmp_path, slots=1) as host:
        first = await host.create()
        await pause(host, first)
        second = await host.create()
        reply = await resume(host, first)
        assert (reply.status, reply.code) == (503, "no_capacity")
        assert await host.state(first) == "paused"
        await host.ask("DELETE", f"/v1/sandboxes/{second}")
        assert (await resume(host, first)).status == 200


async def test_an_engine_that_cannot_save_says_so(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.can_save = False
        sandbox = await host.create()
        reply = await pause(host, sandbox)
        assert (reply.status, reply.code) == (409, "wrong_state")
        assert "cannot pause" in reply.json["error"]["message"]
        await assert_runs(host, sandbox)
        for field, value in (("on_timeout", "pause"), ("idle_sec", 5)):
            reply = await host.ask("POST", "/v1/sandboxes", {field: value})
            assert (reply.status, reply.code, reply.json["error"]["field"]) == (400, "bad_field", field)
            assert str(value) in reply.json["error"]["value"]


# Broken by an error.


@pytest.mark.parametrize("step", ["pause", "save"])
async def test_a_pause_that_fails_leaves_it_running(tmp_path: Path, step: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        host.engine.broken.add(step)
        for _ in range(3):
            reply = await pause(host, sandbox)
            assert (reply.status, reply.code) == (500, "engine_failed")
            await assert_runs(host, sandbox)
        host.engine.broken.clear()
        assert (await pause(host, sandbox)).status == 200
        await assert_paused(host, sandbox)


async def test_a_pause_that_cannot_be_written_down_leaves_it_running(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        with broken_ledger(host, "paused"):
            assert (await pause(host, sandbox)).status == 500
        await assert_runs(host, sandbox)
        await pause(host, sandbox)
        await assert_paused(host, sandbox)


async def test_a_machine_that_cannot_be_halted_is_given_up(tmp_path: Path) -> None:
    """It is written down as paused, and its process holds its slot: only removing it gives that back."""
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        host.engine.broken.add("halt")
        assert (await pause(host, sandbox)).code == "engine_failed"
        host.engine.broken.clear()
        await assert_failed(host, sandbox, "halt")


@pytest.mark.parametrize("step", ["load"])
async def test_a_resume_that_fails_leaves_it_paused(tmp_path: Path, step: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        before = (await pause(host, sandbox)).json
        host.engine.broken.add(step)
        for _ in range(3):
            reply = await resume(host, sandbox)
            assert (reply.status, reply.code) == (500, "engine_failed")
            assert await view(host, sandbox) == before
            assert in_use(host) == NOTHING
        host.engine.broken.clear()
        await assert_paused(host, sandbox)


@pytest.mark.parametrize("state", ["starting", "running"])
async def test_a_resume_that_cannot_be_written_down_leaves_it_paused(tmp_path: Path, state: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        before = (await pause(host, sandbox)).json
        with broken_ledger(host, state):
            assert (await resume(host, sandbox)).status == 500
        assert await view(host, sandbox) == before
        await assert_paused(host, sandbox)


async def test_a_machine_that_cannot_go_on_is_given_up(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        host.engine.broken.add("resume")
        assert (await resume(host, sandbox)).code == "engine_failed"
        host.engine.broken.clear()
        await assert_failed(host, sandbox, "resume")
        await host.assert_nothing_is_used()


async def test_a_saved_state_that_cannot_be_removed_costs_nothing_but_its_room(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        host.engine.broken.add("discard")
        assert (await resume(host, sandbox)).json["state"] == "running"
        assert host.engine.saved
        host.engine.broken.clear()
        assert (await pause(host, sandbox)).json["state"] == "paused"
        assert (await resume(host, sandbox)).json["state"] == "running"
        assert not host.engine.saved


@pytest.mark.parametrize("said", [refusal(500, "internal"), b"garbage\r\n\r\n", refusal(409, "already_identified")])
async def test_a_guest_that_does_not_take_its_identity_again_is_given_up(tmp_path: Path, said: bytes) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        guest: FakeGuest = host.engine.guest_of(sandbox)
        guest.says["/identity"] = said
        assert (await resume(host, sandbox)).status in (409, 502)
        await assert_failed(host, sandbox, "")
        assert (await view(host, sandbox))["reason"]


class broken_ledger:  # noqa: N801 — a block
    """No sandbox becomes `state` during the block."""

    def __init__(self, host: Host, state: str) -> None:
        self._path, self._state = host.ledger_path, state

    def _run(self, sql: str) -> None:
        db = sqlite3.connect(self._path)
        with db:
            db.execute(sql)
        db.close()

    def __enter__(self) -> None:
        self._run(BROKEN_LEDGER.format(self._state))

    def __exit__(self, *_: object) -> None:
        self._run("DROP TRIGGER broken")


# Broken by a cancellation: what was begun comes to its end, and the caller hears that it was cancelled.


@pytest.mark.parametrize("step", ["pause", "save", "halt"])
async def test_a_pause_whose_caller_leaves_comes_to_its_end(tmp_path: Path, step: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await cancelled_at(host, step, host.sandboxes.pause(sandbox))
        await assert_paused(host, sandbox)


@pytest.mark.parametrize("step", ["load", "resume", "discard"])
async def test_a_resume_whose_caller_leaves_comes_to_its_end(tmp_path: Path, step: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        await cancelled_at(host, step, host.sandboxes.resume(sandbox))
        await assert_runs(host, sandbox)


@pytest.mark.parametrize("work", ["pause", "resume", "destroy"])
async def test_a_caller_may_leave_at_any_moment(tmp_path: Path, work: str) -> None:
    """Cancelled after one round of the loop, after two, after three, until it is through."""
    async with open_host(tmp_path) as host:
        sandbox, rounds, done = await host.create(), 0, False
        while not done:
            await (host.sandboxes.pause if work == "resume" else host.sandboxes.resume)(sandbox)
            task = asyncio.ensure_future(getattr(host.sandboxes, work)(sandbox))
            for _ in range(rounds):
                await asyncio.sleep(0.002 if rounds > 20 else 0)
            done = task.done()
            task.cancel()
            await asyncio.wait([task])
            if await consistent(host, sandbox) == "stopped":
                sandbox = await host.create()
            rounds += 1


async def consistent(host: Host, sandbox: str) -> str:
    """The state of the only sandbox. What it says is what there is."""
    state = await host.state(sandbox)
    has_machine = state == "running"
    assert (len(host.sandboxes.machines()), in_use(host)) == ((1, ONE) if has_machine else (0, NOTHING)), state
    assert len(host.engine.saved) == (state == "paused")
    return state


# Broken by the machine's death.


@pytest.mark.parametrize("step", ["pause", "save"])
async def test_a_machine_that_dies_while_it_is_paused_is_an_error(tmp_path: Path, step: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        reply = await died_at(host, step, pause, sandbox)
        assert (reply.status, reply.code) == (500, "engine_failed")
        await host.until(lambda: in_use(host) == NOTHING)
        await assert_failed(host, sandbox, "killed by signal 9")


async def test_a_machine_that_dies_when_it_is_saved_is_paused_all_the_same(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        assert (await died_at(host, "halt", pause, sandbox)).json["state"] == "paused"
        await assert_paused(host, sandbox)


async def test_a_machine_that_dies_before_it_goes_on_is_given_up(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        assert (await died_at(host, "resume", resume, sandbox)).status in (500, 502)
        await assert_failed(host, sandbox, "")


async def test_a_machine_that_dies_when_it_goes_on_is_an_error(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        await died_at(host, "discard", resume, sandbox)
        await host.until(lambda: in_use(host) == NOTHING)
        await assert_failed(host, sandbox, "killed by signal 9")
