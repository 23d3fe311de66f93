"""What happens to a sandbox by itself: when its time is up, when it is idle, when it was paused for long, when used."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from contract.models import LOCAL_OWNER, Caller, RulesAsked
from tests.unit.poold.poold_fake_guest import refusal
from tests.unit.poold.poold_host import Host, open_host
from tests.unit.poold.poold_ledger import held

pytestmark = pytest.mark.usefixtures("nothing_warm")


async def view(host: Host, sandbox: str) -> dict[str, Any]:
    found: dict[str, Any] = (await host.admin("GET", f"/v1/sandboxes/{sandbox}")).json
    return found


async def looked(host: Host, sandbox: str) -> None:
    """The guest was asked how long it has been quiet, and the answer was heard."""
    asked = host.engine.guest_of(sandbox).asked
    before = asked.count("/health")
    await host.until(lambda: asked.count("/health") > before)
    await asyncio.sleep(0.05)


async def test_a_sandbox_says_what_comes_next(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(timeout_sec=100, paused_sec=50, idle_sec=10)
        found = await view(host, sandbox)
        assert found["rules"] == {
            "timeout_sec": 100,
            "on_timeout": "destroy",
            "idle_sec": 10,
            "hibernate_sec": None,
            "hibernate_kind": "machine",
            "paused_sec": 50,
            "auto_resume": False,
        }
        assert (found["next"]["action"], found["next"]["why"]) == ("pause", "idle")
        assert found["created_ms"] < found["next"]["at_ms"] < found["expires_ms"]
        listed = (await host.ask("GET", "/v1/sandboxes")).json["sandboxes"]
        assert [one["next"] for one in listed] == [found["next"]]

        paused = (await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")).json
        assert paused["next"] == {"action": "destroy", "at_ms": paused["paused_ms"] + 50_000, "why": "paused"}
        assert (await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).json["next"] is None
        plain = await host.create(timeout_sec=100)
        found = await view(host, plain)
        assert found["next"] == {"action": "destroy", "at_ms": found["expires_ms"], "why": "timeout"}


# The end of its time.


async def test_a_sandbox_whose_time_is_up_is_paused_if_that_is_its_rule(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(timeout_sec=1, on_timeout="pause", paused_sec=1)
        await host.until_state(sandbox, "paused")
        events = (await host.ask("GET", f"/v1/sandboxes/{sandbox}/events")).json["events"]
        assert [event["data"]["why"] for event in events if event["kind"] == "paused"] == ["its time was up"]
        await host.until_state(sandbox, "stopped")
        assert (await view(host, sandbox))["reason"] == "it was paused for too long"
        assert host.engine.saved == set()


async def test_a_resume_begins_its_time_anew(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(timeout_sec=100, on_timeout="pause")
        await host.later(101, sandbox)
        await host.until_state(sandbox, "paused")
        back = (await host.ask("POST", f"/v1/sandboxes/{sandbox}/resume")).json
        assert back["next"]["at_ms"] == back["expires_ms"] > host.clock() + 90_000
        await host.later(50, sandbox)
        assert await host.state(sandbox) == "running"
        await host.later(51, sandbox)
        await host.until_state(sandbox, "paused")


async def test_a_new_timeout_counts_from_now(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(timeout_sec=10)
        path = f"/v1/sandboxes/{sandbox}/timeout"
        moved = await host.ask("POST", path, {"timeout_sec": 1000}, X_Request_Id="longer")
        assert (moved.status, moved.json["rules"]["timeout_sec"]) == (200, 1000)
        assert moved.json["next"]["at_ms"] == moved.json["expires_ms"] > host.clock() + 900_000
        await host.later(11, sandbox)
        assert await host.state(sandbox) == "running"
        (row,) = await host.audit(action="sandbox.timeout")
        assert (row.request, row.sandbox) == ("longer", sandbox)
        assert (await host.ask("POST", path, {"timeout_sec": 1})).status == 200
        await host.until_state(sandbox, "stopped")  # the timer was moved, too
        for bad in (0, -1, True, "5", 1 << 40, None):
            reply = await host.ask("POST", path, {"timeout_sec": bad})
            assert (reply.status, reply.code, reply.json["error"]["field"]) == (400, "bad_field", "timeout_sec")
        assert (await host.ask("POST", path, {"timeout_sec": 5})).code == "wrong_state"
        assert (await host.ask("POST", path, {"timeout_sec": 5, "more": 1})).json["error"]["field"] == "more"


async def test_a_timeout_that_is_moved_at_the_last_moment_counts(tmp_path: Path) -> None:
    """Who was told that there is more time has it, even if the old time was up while that was written down."""
    async with open_host(tmp_path) as host:
        sandbox = await host.create(timeout_sec=10)
        async with host.sandboxes._turns.of(sandbox):
            moving = asyncio.ensure_future(host.sandboxes.set_timeout(sandbox, 1000))
            await host.later(11, sandbox)
            await asyncio.sleep(0.05)  # its end is due, and waits for its turn behind the new timeout
        assert (await moving).expires_ms
        await host.sandboxes._turns.all_over()
        assert await host.state(sandbox) == "running"
        await host.later(1000, sandbox)
        await host.until_state(sandbox, "stopped")


async def test_a_deadline_that_was_moved_is_kept_whatever_happens_to_who_moved_it(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(timeout_sec=3600)
        async with held(host.services.ledger) as waiting:
            moving = asyncio.ensure_future(host.sandboxes.set_timeout(sandbox, 1))
            await host.until(lambda: waiting() == 1)
            moving.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await moving
        assert (await view(host, sandbox))["rules"]["timeout_sec"] == 1
        await host.until_state(sandbox, "stopped")


async def test_rules_that_were_written_down_count_whatever_happens_to_who_wrote_them(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        await host.create()  # its owner's rules are in memory now
        async with held(host.services.ledger) as waiting:
            putting = asyncio.ensure_future(host.sandboxes.rules.put(LOCAL_OWNER, RulesAsked(idle_sec=7), Caller()))
            await host.until(lambda: waiting() == 1)
            putting.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert (await view(host, await host.create()))["rules"]["idle_sec"] == 7


async def test_rules_that_change_while_they_are_read_count_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_host(tmp_path) as host:
        rules, has_read, go_on = host.sandboxes.rules, asyncio.Event(), asyncio.Event()
        read = rules.get

        async def slow(owner: str) -> RulesAsked:
            found = await read(owner)
            has_read.set()
            await go_on.wait()
            return found

        monkeypatch.setattr(rules, "get", slow)
        creating = asyncio.ensure_future(host.create())
        await has_read.wait()
        await rules.put(LOCAL_OWNER, RulesAsked(idle_sec=7), Caller())
        go_on.set()
        await creating
        assert (await view(host, await host.create()))["rules"]["idle_sec"] == 7


@pytest.mark.parametrize("action", ["pause", "destroy"])
async def test_a_step_that_is_due_and_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr("poold.sandboxes.host.RETRY_S", 0.02)
    monkeypatch.setattr("poold.pool.ends.RETRY_S", 0.02)
    async with open_host(tmp_path) as host:
        sandbox = await host.create(timeout_sec=10, on_timeout=action)
        step = "save" if action == "pause" else "destroy"
        host.engine.broken.add(step)
        before = host.engine.calls[step]
        await host.later(11, sandbox)
        await host.until(lambda: host.engine.calls[step] >= before + 3)
        host.engine.broken.clear()
        await host.until(lambda: not host.engine.machines)
        assert await host.state(sandbox) == ("paused" if action == "pause" else "stopped")
        await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        await host.assert_nothing_is_used()


@pytest.mark.parametrize("action", ["pause", "destroy"])
async def test_what_is_due_while_the_daemon_stops_is_left_to_the_next(tmp_path: Path, action: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(timeout_sec=10, on_timeout=action)
        host.clock.advance(11)
        await host.sandboxes.stop()
        await host.sandboxes._act(sandbox)  # its timer had gone off a moment before
        assert (await view(host, sandbox))["state"] == "running"
        assert len(host.engine.machines) == 1


# Idleness.


async def test_an_idle_sandbox_is_paused(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(idle_sec=1)
        await host.until_state(sandbox, "paused")  # in real time: the timer is armed by the creation itself
        events = (await host.ask("GET", f"/v1/sandboxes/{sandbox}/events")).json["events"]
        assert [event["data"]["why"] for event in events if event["kind"] == "paused"] == ["it was idle"]


async def test_a_use_is_activity_at_its_end_and_a_question_is_none(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(idle_sec=100)
        first = (await view(host, sandbox))["next"]["at_ms"]
        host.clock.advance(50)
        await host.ask("GET", f"/v1/sandboxes/{sandbox}/health")
        assert (await view(host, sandbox))["next"]["at_ms"] == first
        await host.exec(sandbox, "echo")
        assert (await view(host, sandbox))["next"]["at_ms"] >= first + 50_000


async def while_a_command_runs(host: Host, sandbox: str, check: Callable[[], Awaitable[None]]) -> None:
    guest = host.engine.guest_of(sandbox)
    running = asyncio.create_task(host.exec(sandbox, "cat"))
    await host.until(lambda: guest.streams == 1)
    await check()
    guest.typed.put_nowait(b"")
    assert (await running).status == 200


async def while_a_terminal_is_open(host: Host, sandbox: str, check: Callable[[], Awaitable[None]]) -> None:
    async with host.dial(f"/v1/sandboxes/{sandbox}/terminal") as socket:
        await socket.recv()
        await check()


@pytest.mark.parametrize("during", [while_a_command_runs, while_a_terminal_is_open])
async def test_what_is_used_is_not_idle(
    tmp_path: Path, during: Callable[[Host, str, Callable[[], Awaitable[None]]], Awaitable[None]]
) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(idle_sec=10)

        async def check() -> None:
            assert (await view(host, sandbox))["next"]["why"] == "timeout"
            await host.later(100, sandbox)
            await asyncio.sleep(0.05)
            assert await host.state(sandbox) == "running"

        await during(host, sandbox, check)
        await host.until(lambda: all(live.users == 0 for live in host.sandboxes.machines()))
        assert (await view(host, sandbox))["next"]["why"] == "idle"
        await host.later(11, sandbox)
        await host.until_state(sandbox, "paused")


async def test_output_that_nobody_reads_is_activity(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(idle_sec=10)
        health = host.engine.guest_of(sandbox).health
        health["quiet_ms"] = 3000
        await host.later(11, sandbox)
        await looked(host, sandbox)
        found = await view(host, sandbox)
        assert (found["state"], found["next"]["why"]) == ("running", "idle")
        assert host.clock() + 5000 < found["next"]["at_ms"] <= host.clock() + 7000
        health["quiet_ms"] = 20_000
        await host.later(8, sandbox)
        await host.until_state(sandbox, "paused")


@pytest.mark.parametrize("quiet", [-1, True, "0", None, 1.5, [], 1 << 60])
async def test_a_guest_that_says_nonsense_of_its_quiet_is_idle_all_the_same(tmp_path: Path, quiet: object) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(idle_sec=10)
        host.engine.guest_of(sandbox).health["quiet_ms"] = quiet
        await host.later(11, sandbox)
        await host.until_state(sandbox, "paused")


async def test_a_guest_that_does_not_answer_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.sandboxes.host.RETRY_S", 0.02)
    async with open_host(tmp_path) as host:
        sandbox = await host.create(idle_sec=10)
        guest = host.engine.guest_of(sandbox)
        guest.says["/health"] = refusal(500, "internal")
        await host.later(11, sandbox)
        await host.until(lambda: guest.asked.count("/health") >= 3)
        assert await host.state(sandbox) == "running"
        guest.says.clear()
        await host.until_state(sandbox, "paused")


# Coming back by itself.


async def test_a_use_brings_a_paused_sandbox_back_if_that_is_its_rule(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(auto_resume=True)
        for use in (
            lambda: host.exec(sandbox, "echo on"),
            lambda: host.file("PUT", sandbox, "/a", b"x"),
            lambda: host.file("GET", sandbox, "/a"),
            lambda: host.ask("GET", f"/v1/sandboxes/{sandbox}/logs"),
        ):
            await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")
            reply = await use()
            assert reply.status == 200, reply.body
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")
        await while_a_terminal_is_open(host, sandbox, lambda: asyncio.sleep(0))
        assert host.engine.calls["load"] == 5
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")
        assert (await host.ask("GET", f"/v1/sandboxes/{sandbox}/health")).code == "wrong_state"  # a question is no use
        assert (await view(host, sandbox))["state"] == "paused"


async def test_many_uses_at_once_bring_it_back_once(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(auto_resume=True)
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")
        replies = await asyncio.gather(*(host.exec(sandbox, f"echo {number}") for number in range(20)))
        assert [reply.json["stdout"] for reply in replies] == [f"{number}\n" for number in range(20)]
        assert host.engine.calls["load"] == 1


async def test_a_use_during_a_pause_waits_and_brings_it_back(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(auto_resume=True)
        host.engine.held.add("save")
        pausing = asyncio.create_task(host.ask("POST", f"/v1/sandboxes/{sandbox}/pause"))
        await host.until(lambda: host.engine.calls["save"] == 1)
        using = asyncio.create_task(host.exec(sandbox, "echo on"))
        await asyncio.sleep(0.05)
        host.engine.held.clear()
        assert (await pausing).json["state"] == "paused"
        assert (await using).json["stdout"] == "on\n"


async def test_a_use_that_cannot_bring_it_back_says_why(tmp_path: Path) -> None:
    async with open_host(tmp_path, slots=1) as host:
        sandbox = await host.create(auto_resume=True)
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")
        other = await host.create()
        assert (await host.exec(sandbox, "echo")).code == "no_capacity"
        await host.ask("DELETE", f"/v1/sandboxes/{other}")
        host.engine.broken.add("load")
        assert (await host.exec(sandbox, "echo")).code == "engine_failed"
        host.engine.broken.clear()
        assert (await host.exec(sandbox, "echo on")).json["stdout"] == "on\n"


# Whose rules.


async def test_an_owners_rules_are_the_defaults_of_its_requests(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        rules: dict[str, Any] = {"timeout_sec": 77, "on_timeout": "pause", "idle_sec": 33, "hibernate_sec": 40}
        rules |= {"hibernate_kind": "files", "paused_sec": 44, "auto_resume": True}
        put = await host.admin("PUT", "/admin/owners/ann@example.org/rules", rules)
        assert (put.status, put.json) == (200, {"owner": "ann@example.org", **rules})
        assert (await host.admin("GET", "/admin/owners/ann@example.org/rules")).json == put.json

        async def made(owner: str, **wanted: object) -> dict[str, Any]:
            reply = await host.ask("POST", "/v1/sandboxes", wanted, owner=owner)
            found: dict[str, Any] = reply.json
            assert found["owner"] == owner
            return found

        assert (await made("ann@example.org"))["rules"] == rules
        own = await made("ann@example.org", timeout_sec=5, auto_resume=False)
        assert own["rules"] == {**rules, "timeout_sec": 5, "auto_resume": False}
        other = await made("bob")
        assert other["rules"]["idle_sec"] is None
        await host.admin("PUT", "/admin/owners/ann@example.org/rules", {"idle_sec": 9})  # replaces all of them
        changed = (await made("ann@example.org"))["rules"]
        assert (changed["idle_sec"], changed["timeout_sec"]) == (9, other["rules"]["timeout_sec"])
        assert (await view(host, own["id"]))["rules"] == own["rules"]  # what is there keeps its own
    async with open_host(tmp_path) as host:  # and they are not forgotten
        assert (await host.admin("GET", "/admin/owners/ann@example.org/rules")).json["idle_sec"] == 9


async def test_an_owner_with_an_odd_name_is_refused(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        for name in ("a b", "-a", "ä", "a" * 65, "a/b"):
            reply = await host.admin("POST", "/v1/sandboxes", {}, Warren_Owner=name.encode().decode("latin-1"))
            assert (reply.status, reply.code, reply.json["error"]["field"]) == (400, "bad_field", "owner"), name
        await host.assert_nothing_is_used()
