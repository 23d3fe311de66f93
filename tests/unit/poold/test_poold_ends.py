"""The end of a sandbox when the host is in trouble itself: nothing is forgotten, and nobody else is harmed."""

import asyncio
from pathlib import Path

import pytest

from contract.errors import CapacityError
from poold.ledger.driver import sqlite3
from tests.unit.poold.poold_host import SLOTS, Host, open_host
from tests.unit.poold.poold_ledger import held, refusing
from tests.unit.poold.poold_states import NOTHING, assert_paused, in_use, pause, resume

pytestmark = pytest.mark.usefixtures("nothing_warm", "soon_again")


@pytest.fixture
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.sandboxes.host.RETRY_S", 0.02)
    monkeypatch.setattr("poold.pool.ends.RETRY_S", 0.02)


def run(host: Host, sql: str) -> None:
    db = sqlite3.connect(host.ledger_path)
    with db:
        db.execute(sql)
    db.close()


async def test_a_machine_that_cannot_be_removed_is_tried_again_by_itself(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, other = await host.create(), await host.create()
        host.engine.broken.add("destroy")
        reply = await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        assert (reply.status, reply.code) == (500, "engine_failed")
        assert await host.state(sandbox) == "stopped"
        assert host.slots.free == SLOTS - 2  # something may still be in it
        assert (await host.exec(sandbox, "echo")).status == 409
        assert (await host.ask("POST", f"/v1/sandboxes/{sandbox}/resume")).code == "wrong_state"
        before = host.engine.calls["destroy"]
        await host.until(lambda: host.engine.calls["destroy"] > before + 1)
        assert (await host.exec(other, "echo on")).status == 200
        host.engine.broken.clear()
        await host.until(lambda: host.slots.free == SLOTS - 1)
        assert (await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).status == 200
        await host.ask("DELETE", f"/v1/sandboxes/{other}")
        await host.assert_nothing_is_used()


async def test_who_destroys_again_gives_back_what_could_not_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.pool.ends.RETRY_S", 60.0)
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        host.engine.broken.add("destroy")
        assert (await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).status == 500
        host.engine.broken.clear()
        assert (await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).json["state"] == "stopped"
        assert host.slots.free == SLOTS
        await host.assert_nothing_is_used()


async def test_a_machine_that_dies_and_cannot_be_removed_costs_nobody_else(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, other = await host.create(), await host.create()
        host.engine.broken.add("destroy")
        before = host.engine.calls["destroy"]
        host.engine.kill(host.engine.machine_of(sandbox), "killed by signal 9")
        await host.until(lambda: host.engine.calls["destroy"] > before + 1)
        assert (await host.exec(other, "echo on")).status == 200
        host.engine.broken.clear()
        await host.until(lambda: host.slots.free == SLOTS - 1)
        assert "killed by signal 9" in (await host.ask("GET", f"/v1/sandboxes/{sandbox}")).json["reason"]


async def test_a_machine_that_dies_while_nothing_can_be_written_down_is_written_down_later(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, other = await host.create(), await host.create()
        run(host, "ALTER TABLE sandboxes RENAME TO hidden")
        host.engine.kill(host.engine.machine_of(sandbox), "killed by signal 9")
        assert (await host.ask("GET", f"/v1/sandboxes/{sandbox}")).code == "ledger_failed"
        assert (await host.ask("GET", "/healthz")).status == 200
        run(host, "ALTER TABLE hidden RENAME TO sandboxes")
        await host.until_state(sandbox, "error")
        assert (await host.exec(other, "echo on")).status == 200
        await host.ask("DELETE", f"/v1/sandboxes/{other}")
        await host.assert_nothing_is_used()


async def test_a_deadline_that_comes_while_nothing_can_be_written_down_is_kept_later(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(timeout_sec=10)
        found = await host.sandboxes.get(sandbox)
        run(host, "ALTER TABLE sandboxes RENAME TO hidden")
        host.clock.advance(11)
        host.sandboxes.wait_for(found)
        assert (await host.ask("GET", "/healthz")).status == 200
        run(host, "ALTER TABLE hidden RENAME TO sandboxes")
        await host.until_state(sandbox, "stopped")
        await host.assert_nothing_is_used()


# An undo that could not be written down.


async def begun(host: Host) -> tuple[str, "asyncio.Task[object]"]:
    """A sandbox whose creation stands still when its intent is written down."""
    host.engine.held.add("resume")
    creating: asyncio.Task[object] = asyncio.ensure_future(host.ask("POST", "/v1/sandboxes"))
    await host.until(lambda: host.engine.calls["resume"] > 0)
    (sandbox,) = host.sandboxes.creations.of()
    await host.audit()  # whatever waited is written
    assert await host.state(sandbox) == "starting"
    return sandbox, creating


async def test_a_creation_whose_end_cannot_be_written_down_is_settled_when_it_can(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, creating = await begun(host)
        with refusing(host.ledger_path, "error"):
            host.engine.broken.add("resume")
            host.engine.held.clear()
            await creating
            assert (await host.state(sandbox), in_use(host)) == ("starting", NOTHING)
        await host.until_state(sandbox, "error")
        assert (await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).json["state"] == "stopped"
        await host.assert_nothing_is_used()


async def test_a_creation_that_is_ended_as_it_becomes_ready_is_settled_too(tmp_path: Path) -> None:
    """It is written down that it is ready, and not that it was ended."""
    async with open_host(tmp_path) as host:
        sandbox, creating = await begun(host)
        with refusing(host.ledger_path, "error"):
            async with held(host.services.ledger) as waiting:
                host.engine.held.clear()
                await host.until(lambda: waiting() == 1)
                host.sandboxes.creations.end(CapacityError("the test says so"))
                await host.until(lambda: waiting() == 2)
            await creating
            assert (await host.state(sandbox), in_use(host)) == ("running", NOTHING)
        await host.until_state(sandbox, "error")
        await host.assert_nothing_is_used()


async def test_a_resume_that_cannot_be_taken_back_is_when_it_can(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        host.engine.held.add("load")
        resuming = asyncio.ensure_future(resume(host, sandbox))
        await host.until_state(sandbox, "starting")
        with refusing(host.ledger_path, "paused"):
            host.engine.broken.add("load")
            host.engine.held.clear()
            assert (await resuming).status == 500
            assert await host.state(sandbox) == "starting"
        host.engine.broken.clear()
        await host.until_state(sandbox, "paused")
        await assert_paused(host, sandbox)


async def test_a_machine_whose_end_cannot_be_written_down_is_given_back_at_once(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        host.engine.held.add("resume")
        resuming = asyncio.ensure_future(resume(host, sandbox))
        await host.until_state(sandbox, "running")
        with refusing(host.ledger_path, "error"):
            host.engine.broken.add("resume")
            host.engine.held.clear()
            assert (await resuming).status == 500
            assert (await host.state(sandbox), in_use(host)) == ("running", NOTHING)
        await host.until_state(sandbox, "error")
        await host.assert_nothing_is_used()


async def test_a_pause_that_is_given_up_while_that_cannot_be_written_down_is_an_error_later(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        host.engine.broken.add("halt")
        with refusing(host.ledger_path, "error"):
            assert (await pause(host, sandbox)).code == "engine_failed"
            assert (await host.state(sandbox), in_use(host)) == ("paused", NOTHING)
        await host.until_state(sandbox, "error")
        await host.assert_nothing_is_used()


async def test_what_is_owed_comes_before_whatever_else_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poold.pool.ends.RETRY_S", 60.0)
    async with open_host(tmp_path) as host:
        sandbox, creating = await begun(host)
        with refusing(host.ledger_path, "error"):
            host.engine.broken.add("resume")
            host.engine.held.clear()
            await creating
            assert (await host.ask("POST", f"/v1/sandboxes/{sandbox}/timeout", {"timeout_sec": 5})).status == 500
        assert (await host.ask("POST", f"/v1/sandboxes/{sandbox}/timeout", {"timeout_sec": 5})).code == "wrong_state"
        assert await host.state(sandbox) == "error"


async def test_what_was_destroyed_owes_nothing(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, creating = await begun(host)
        with refusing(host.ledger_path, "error"):
            host.engine.broken.add("resume")
            host.engine.held.clear()
            await creating
            assert (await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).json["state"] == "stopped"
        assert host.sandboxes._owed._moves == {}
        await host.assert_nothing_is_used()
