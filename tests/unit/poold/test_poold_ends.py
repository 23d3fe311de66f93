"""The end of a sandbox when the host is in trouble itself: nothing is forgotten, and nobody else is harmed."""

import sqlite3
from pathlib import Path

import pytest

from tests.unit.poold.poold_host import SLOTS, Host, open_host

pytestmark = pytest.mark.usefixtures("nothing_warm", "soon_again")


@pytest.fixture
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.sandboxes.host.RETRY_S", 0.02)


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
    monkeypatch.setattr("poold.sandboxes.host.RETRY_S", 60.0)
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
