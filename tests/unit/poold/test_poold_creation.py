"""A creation that fails or is cancelled at any step leaves no machine, no slot and no memory behind."""

import asyncio
from pathlib import Path

import pytest

from contract.models import CreateSandbox, ShapeLimits
from poold.ledger.driver import sqlite3
from poold.pool import Pool
from tests.unit.poold.poold_fake_guest import refusal
from tests.unit.poold.poold_host import LIMIT_S, SLOTS, Host, open_host

ANY = CreateSandbox.parse(b"{}", ShapeLimits(4, 8192, 8192))
TIMES = 3 * SLOTS  # more often than there are slots: a leak would be seen


@pytest.mark.parametrize("step", ["build_snapshot", "restore", "resume"])
async def test_an_engine_that_fails_leaves_nothing(tmp_path: Path, step: str) -> None:
    async with open_host(tmp_path) as host:
        host.engine.broken.add(step)
        for _ in range(TIMES):
            reply = await host.ask("POST", "/v1/sandboxes")
            assert (reply.status, reply.code) == (500, "engine_failed")
        listed = (await host.ask("GET", "/v1/sandboxes")).json["sandboxes"]
        assert {sandbox["state"] for sandbox in listed} == {"error"}
        assert all(step in sandbox["reason"] for sandbox in listed)
        await host.assert_nothing_is_used()


BAD_IDENTITIES = {
    "refused": (refusal(409, "already_identified"), 409),
    "full": (refusal(507, "disk_full"), 507),
    "broken": (refusal(500, "internal"), 502),
    "garbage": (b"garbage\r\n\r\n", 502),
}


@pytest.mark.parametrize(("said", "status"), BAD_IDENTITIES.values(), ids=BAD_IDENTITIES.keys())
async def test_a_guest_that_takes_no_identity_leaves_nothing(tmp_path: Path, said: bytes, status: int) -> None:
    async with open_host(tmp_path) as host:
        host.engine.guests_say["/identity"] = said
        for _ in range(TIMES):
            reply = await host.ask("POST", "/v1/sandboxes")
            assert reply.status >= 400
            assert reply.status in (status, 502)
        host.engine.guests_say.clear()
        await discard_warm(host)
        await host.assert_nothing_is_used()


async def test_a_guest_that_cannot_be_frozen_leaves_nothing(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.guests_say["/rehearse"] = refusal(500, "internal")
        for _ in range(TIMES):
            assert (await host.ask("POST", "/v1/sandboxes")).code == "guest_failed"
        await host.assert_nothing_is_used()


async def test_a_ledger_that_cannot_write_the_intent_leaves_nothing(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        with sqlite3.connect(host.ledger_path) as db:
            db.execute("ALTER TABLE sandboxes RENAME TO hidden")
        for _ in range(TIMES):
            reply = await host.ask("POST", "/v1/sandboxes")
            assert (reply.status, reply.code) == (500, "ledger_failed")
        with sqlite3.connect(host.ledger_path) as db:
            db.execute("ALTER TABLE hidden RENAME TO sandboxes")
        db.close()
        await host.assert_nothing_is_used()


async def test_a_ledger_that_cannot_write_the_success_leaves_nothing(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        with sqlite3.connect(host.ledger_path) as db:
            db.execute(
                "CREATE TRIGGER broken BEFORE UPDATE ON sandboxes WHEN new.state = 'running'"
                " BEGIN SELECT RAISE(ABORT, 'the test says so'); END"
            )
        for _ in range(TIMES):
            assert (await host.ask("POST", "/v1/sandboxes")).status == 500
        with sqlite3.connect(host.ledger_path) as db:
            db.execute("DROP TRIGGER broken")
        db.close()
        listed = (await host.ask("GET", "/v1/sandboxes")).json["sandboxes"]
        assert {sandbox["state"] for sandbox in listed} == {"error"}
        await host.assert_nothing_is_used()


@pytest.mark.parametrize("step", ["build_snapshot", "restore", "resume"])
async def test_a_creation_that_is_cancelled_in_the_engine_leaves_nothing(tmp_path: Path, step: str) -> None:
    async with open_host(tmp_path) as host:
        host.engine.held.add(step)
        for _ in range(TIMES):
            creating = asyncio.create_task(host.sandboxes.create(ANY))
            await host.until(lambda: host.pool.keeper._opening > 0)
            await cancel(creating)
        await host.assert_nothing_is_used()


async def test_a_creation_that_is_cancelled_at_any_moment_leaves_nothing(tmp_path: Path) -> None:
    """Cancelled after one step of the loop, after two, after three, until it is through."""
    async with open_host(tmp_path) as host:
        done = False
        steps = 0
        while not done:
            creating = asyncio.create_task(host.sandboxes.create(ANY))
            for _ in range(steps):
                await asyncio.sleep(0.0002 if steps > 30 else 0)
                if creating.done():
                    break
            steps += 1
            done = creating.done()
            if not done:
                await cancel(creating)
        await host.sandboxes.destroy(creating.result().id)
        listed = await host.ask("GET", "/v1/sandboxes?limit=1000")
        assert {sandbox["state"] for sandbox in listed.json["sandboxes"]} <= {"error"}
        await host.assert_nothing_is_used()


async def test_a_client_that_leaves_during_creation_leaves_nothing_that_does_not_expire(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.held.add("resume")
        _, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(host.head("POST", "/v1/sandboxes", "Content-Length: 17") + b'{"timeout_sec":1}')
        await host.until(lambda: host.engine.calls["resume"] > 0)
        writer.close()
        host.engine.held.clear()
        await host.until(lambda: len(host.engine.machines) + host.slots.free == SLOTS)
        await host.until(lambda: len(host.engine.machines) <= 1)
        await host.assert_nothing_is_used()


async def test_destroying_a_sandbox_that_is_being_created_leaves_nothing(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.held.add("resume")
        creating = asyncio.create_task(host.ask("POST", "/v1/sandboxes"))
        await host.until(lambda: host.engine.calls["resume"] > 0)
        async with asyncio.timeout(10):  # the machine may be awake before the claim is written down
            while not (found := (await host.ask("GET", "/v1/sandboxes")).json["sandboxes"]):
                pass
        (sandbox,) = found
        assert sandbox["state"] == "starting"
        assert (await host.ask("DELETE", f"/v1/sandboxes/{sandbox['id']}")).status == 200
        host.engine.held.clear()
        assert (await creating).status == 409
        assert await host.state(sandbox["id"]) == "stopped"
        await host.assert_nothing_is_used()


async def test_a_machine_that_dies_during_creation_leaves_nothing(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        await host.ask("DELETE", f"/v1/sandboxes/{await host.create()}")
        for _ in range(TIMES):
            host.engine.held.add("resume")
            before = host.engine.calls["resume"]
            creating = asyncio.create_task(host.ask("POST", "/v1/sandboxes"))
            await host.until(lambda before=before: host.engine.calls["resume"] > before)  # type: ignore[misc]
            for machine_id in list(host.engine.machines):
                host.engine.kill(machine_id, "out of memory")
            host.engine.held.clear()
            reply = await creating
            assert reply.status in (201, 500, 502)  # a warm machine that died was replaced
            if reply.status == 201:
                await host.ask("DELETE", f"/v1/sandboxes/{reply.json['id']}")
        await host.assert_nothing_is_used()


async def test_a_claim_takes_a_warm_machine_and_starts_none(tmp_path: Path) -> None:
    async with open_host(tmp_path, warm=2) as host:
        await host.ready()
        warm = set(host.engine.machines)
        sandbox = await host.create()
        assert host.engine.machine_of(sandbox) in warm


async def test_a_warm_machine_that_fails_at_its_claim_is_replaced(tmp_path: Path) -> None:
    async with open_host(tmp_path, warm=1) as host:
        await host.ready()
        (warm,) = host.engine.machines
        first = host.engine.guests[warm]
        first.says["/identity"] = b"garbage\r\n\r\n"
        sandbox = await host.create()
        assert host.engine.guest_of(sandbox) is not first
        assert (await host.exec(sandbox, "echo on")).status == 200


async def test_a_warm_machine_that_refuses_its_identity_is_replaced(tmp_path: Path) -> None:
    async with open_host(tmp_path, warm=1) as host:
        await host.ready()
        (warm,) = host.engine.machines
        host.engine.guests[warm].says["/identity"] = refusal(507, "disk_full")
        await host.create()


async def test_a_warm_machine_that_dies_is_replaced(tmp_path: Path) -> None:
    async with open_host(tmp_path, warm=2) as host:
        await host.ready()
        for machine_id in list(host.engine.machines):
            host.engine.kill(machine_id, "out of memory")
        old = set(host.engine.machines)
        await host.until(lambda: len(host.engine.machines) == 2 and not old & set(host.engine.machines))
        assert await host.state(await host.create()) == "running"


async def test_the_only_place_goes_to_who_asks_for_another_shape_and_not_to_the_pool_again(tmp_path: Path) -> None:
    async with open_host(tmp_path, warm=1, slots=1) as host:
        await host.ready()
        assert await host.state(await host.create(vcpus=2)) == "running"
        assert host.engine.calls["restore"] == 2, "the warm one that went, and the one that was asked for"


async def test_the_pool_goes_on_after_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.pool.keeper.RETRY_AFTER_FAILURE_S", 0.01)
    async with open_host(tmp_path) as host:
        await host.ask("DELETE", f"/v1/sandboxes/{await host.create()}")
    before = host.engine.calls["restore"]
    host.engine.guests_say["/rehearse"] = refusal(409, "already_identified")
    async with open_host(tmp_path, warm=1, engine=host.engine) as host:
        await host.until(lambda: host.engine.calls["restore"] > before)
        host.engine.guests_say.clear()
        async with asyncio.timeout(0.5):
            await host.ready()


async def test_the_pool_goes_on_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.pool.keeper.RETRY_AFTER_FAILURE_S", 0.01)
    async with open_host(tmp_path, warm=2) as host:
        for step in ("restore", "resume", "pause"):
            host.engine.broken.add(step)
            for machine_id in list(host.engine.machines):
                host.engine.kill(machine_id, "out of memory")
            before = host.engine.calls[step]
            await host.until(lambda step=step, before=before: host.engine.calls[step] > before + 2)  # type: ignore[misc]
            host.engine.broken.clear()
            await host.ready()
        await host.until(lambda: len(host.engine.machines) == 2)
        assert host.slots.free == SLOTS - 2


async def test_warm_machines_of_another_shape_make_room(tmp_path: Path) -> None:
    async with open_host(tmp_path, warm=2, slots=2) as host:
        await host.ready()
        assert await host.state(await host.create(memory_mb=128)) == "running"


async def cancel(task: "asyncio.Task[object]") -> None:
    task.cancel()
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(asyncio.CancelledError):
            await task


async def discard_warm(host: Host) -> None:
    """Machines that became warm while guests were broken are broken still."""
    pool: Pool = host.pool
    while pool.keeper._warm:
        place = pool.keeper._warm.pop()
        await pool.release(place)


async def test_a_daemon_that_stops_during_a_creation_ends_and_leaves_no_machine(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        engine = host.engine
        engine.held.add("resume")
        asking = asyncio.create_task(host.ask("POST", "/v1/sandboxes"))
        await host.until(lambda: engine.calls["resume"] > 0)
    await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(LIMIT_S):
        while engine.machines:
            await asyncio.sleep(0.005)
