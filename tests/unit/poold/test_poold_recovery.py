"""A second daemon on what a first one left: what runs is taken over, what was half done is undone."""

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contract.states import Event
from poold.engines import Machine
from poold.errors import EngineError
from poold.ledger import Ledger, sandboxes
from poold.reconcile.plan import CUT_SHORT, ENDED, NO_SLOT, NOTHING_SAVED
from poold.slots import Slot
from tests.unit.poold.poold_fake_engine import FakeEngine
from tests.unit.poold.poold_fake_guest import refusal
from tests.unit.poold.poold_host import MACHINE_MB, SLOTS, Host, open_host

pytestmark = pytest.mark.usefixtures("nothing_warm")

SILENT = b""  # a guest that takes the request and says nothing


@contextlib.asynccontextmanager
async def reopen(folder: Path, engine: FakeEngine, **options: Any) -> AsyncIterator[Host]:
    """The next daemon on the same host."""
    async with open_host(folder, engine=engine, recover=True, **options) as host:
        yield host


async def left(folder: Path, count: int = 1, **wanted: object) -> tuple[FakeEngine, list[str]]:
    """The machines and sandboxes of a daemon that has gone."""
    async with open_host(folder) as host:
        made = [await host.create(**wanted) for _ in range(count)]
        return host.engine, made


async def moved(folder: Path, sandbox: str, *events: Event, **changes: Any) -> None:
    """What a daemon wrote down before it was killed."""
    async with Ledger.open(folder / "ledger.db") as ledger:
        for event in events:
            await ledger.write(partial(sandboxes.move, sandbox_id=sandbox, event=event, now_ms=1, **changes))


async def view(host: Host, sandbox: str) -> dict[str, Any]:
    found: dict[str, Any] = (await host.ask("GET", f"/v1/sandboxes/{sandbox}")).json
    return found


def memory_used(host: Host) -> int:
    return host.pool.places.memory_budget_mb - host.pool.places.memory_left_mb


async def destroy_all(host: Host, *made: str) -> None:
    for sandbox in made:
        assert (await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).status == 200
    assert host.engine.saved == set()
    await host.assert_nothing_is_used()


async def test_running_sandboxes_are_adopted_with_their_slots(tmp_path: Path) -> None:
    engine, made = await left(tmp_path, 3)
    slots = {machine.slot.number for machine in engine.machines.values()}
    async with reopen(tmp_path, engine) as host:
        assert sorted(host.services.recovery.adopted) == sorted(made)
        assert {live.place.slot.number for live in host.sandboxes.machines()} == slots
        assert (host.slots.free, memory_used(host)) == (SLOTS - 3, 3 * MACHINE_MB)
        for sandbox in made:
            assert (await host.exec(sandbox, f"echo {sandbox}")).json["stdout"] == f"{sandbox}\n"
        assert (await host.admin("GET", "/admin/status")).json["recovery"]["adopted"] == host.services.recovery.adopted
        await destroy_all(host, *made)


async def test_an_adopted_sandbox_ends_with_its_machine(tmp_path: Path) -> None:
    engine, (sandbox,) = await left(tmp_path)
    async with reopen(tmp_path, engine) as host:
        engine.kill(engine.machine_of(sandbox), "killed by signal 9")
        await host.until(lambda: not engine.machines)
        assert "killed by signal 9" in (await view(host, sandbox))["reason"]
        await host.assert_nothing_is_used()


async def test_restarts_may_follow_each_other(tmp_path: Path) -> None:
    engine, made = await left(tmp_path, 2)
    for _ in range(3):
        async with reopen(tmp_path, engine) as host:
            assert sorted(host.services.recovery.adopted) == sorted(made)
            await host.ask("POST", f"/v1/sandboxes/{made[0]}/pause")
            await host.ask("POST", f"/v1/sandboxes/{made[0]}/resume")
            assert (await host.exec(made[0], "echo on")).status == 200


async def test_a_creation_that_was_cut_short_is_written_off_and_its_machine_removed(tmp_path: Path) -> None:
    engine, (sandbox,) = await left(tmp_path)
    # As it was a moment before: its machine there, its row `starting`.
    machine = engine.machine_of(sandbox)
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        await ledger.write(lambda db: db.execute("UPDATE sandboxes SET state = 'starting', started_ms = NULL"))
        await ledger.write(lambda db: db.execute("UPDATE usage SET ended_ms = started_ms"))
    async with reopen(tmp_path, engine) as host:
        found = await view(host, sandbox)
        assert (found["state"], found["reason"]) == ("error", CUT_SHORT)
        assert (host.services.recovery.lost, host.services.recovery.removed) == ([sandbox], [machine])
        assert engine.machines == {}
        await host.assert_nothing_is_used()


async def paused(folder: Path, **wanted: object) -> tuple[FakeEngine, str]:
    async with open_host(folder) as host:
        sandbox = await host.create(**wanted)
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")
        return host.engine, sandbox


async def test_a_paused_sandbox_stays_paused(tmp_path: Path) -> None:
    engine, sandbox = await paused(tmp_path)
    async with reopen(tmp_path, engine) as host:
        assert await host.state(sandbox) == "paused"
        assert (host.slots.free, memory_used(host)) == (SLOTS, 0)
        assert (await host.ask("POST", f"/v1/sandboxes/{sandbox}/resume")).status == 200
        assert (await host.exec(sandbox, "echo back")).json["stdout"] == "back\n"
        assert engine.saved == set()
        await destroy_all(host, sandbox)


async def test_a_resume_that_was_cut_short_is_put_back(tmp_path: Path) -> None:
    """Killed between the intent and the machine's first instruction, with and without a process."""
    for has_process in (False, True):
        folder = tmp_path / str(has_process)
        folder.mkdir()
        engine, sandbox = await paused(folder)
        async with open_host(folder, engine=engine) as host:
            since_ms = (await view(host, sandbox))["paused_ms"]
            if has_process:
                slot = host.slots.take_nowait()
                await engine.load(next(iter(engine.saved)), slot)
        await moved(folder, sandbox, Event.RESUME)
        async with reopen(folder, engine) as host:
            found = await view(host, sandbox)
            assert (found["state"], found["paused_ms"]) == ("paused", since_ms)
            assert host.services.recovery.undone == [sandbox]
            assert (engine.machines, len(engine.saved)) == ({}, 1)
            assert (await host.ask("POST", f"/v1/sandboxes/{sandbox}/resume")).json["state"] == "running"
            await destroy_all(host, sandbox)


async def test_a_pause_that_was_cut_short_before_the_halt_is_completed(tmp_path: Path) -> None:
    engine, (sandbox,) = await left(tmp_path)
    (machine,) = engine.machines.values()
    await engine.pause(machine)
    await engine.save(machine)
    await moved(tmp_path, sandbox, Event.PAUSE)
    async with reopen(tmp_path, engine) as host:
        assert await host.state(sandbox) == "paused"
        assert (engine.machines, engine.saved) == ({}, {machine.id})
        assert host.slots.free == SLOTS
        assert (await host.ask("POST", f"/v1/sandboxes/{sandbox}/resume")).status == 200
        await destroy_all(host, sandbox)


async def test_a_pause_that_was_cut_short_before_it_was_written_down_runs_on(tmp_path: Path) -> None:
    engine, (sandbox,) = await left(tmp_path)
    (machine,) = engine.machines.values()
    await engine.pause(machine)
    await engine.save(machine)
    async with reopen(tmp_path, engine) as host:
        assert await host.state(sandbox) == "running"
        assert (await host.exec(sandbox, "echo on")).status == 200
        assert (engine.frozen, engine.saved) == (set(), set())  # what was saved is of the past
        await destroy_all(host, sandbox)


async def test_a_resume_that_was_cut_short_after_it_was_written_down_is_completed(tmp_path: Path) -> None:
    """Its machine is there, frozen, with the generation before: it goes on, and is told."""
    engine, sandbox = await paused(tmp_path)
    async with open_host(tmp_path, engine=engine) as host:
        machine = await engine.load(next(iter(engine.saved)), host.slots.take_nowait())
    await moved(tmp_path, sandbox, Event.RESUME)
    await moved(tmp_path, sandbox, Event.READY, generation=2)
    async with reopen(tmp_path, engine) as host:
        assert (await host.exec(sandbox, "echo on")).status == 200
        assert engine.guests[machine.id].identity["generation"] == 2
        assert (engine.frozen, engine.saved) == (set(), set())
        await destroy_all(host, sandbox)


def kill(engine: FakeEngine) -> None:
    for machine_id in list(engine.machines):
        engine.kill(machine_id, "the host lost power")


def kill_and_forget(engine: FakeEngine) -> None:
    kill(engine)
    engine.machines.clear()


@pytest.mark.parametrize("end", [kill, kill_and_forget])
async def test_a_machine_that_ended_meanwhile_is_lost_with_the_reason(
    tmp_path: Path, end: Callable[[FakeEngine], None]
) -> None:
    engine, made = await left(tmp_path, 2)
    end(engine)
    async with reopen(tmp_path, engine) as host:
        for sandbox in made:
            found = await view(host, sandbox)
            assert (found["state"], found["reason"]) == ("error", ENDED)
        assert sorted(host.services.recovery.lost) == sorted(made)
        assert engine.machines == {}
        await host.assert_nothing_is_used()


async def test_a_paused_sandbox_whose_memory_is_gone_is_lost(tmp_path: Path) -> None:
    engine, sandbox = await paused(tmp_path)
    engine.saved.clear()
    async with reopen(tmp_path, engine) as host:
        found = await view(host, sandbox)
        assert (found["state"], found["reason"]) == ("error", NOTHING_SAVED)
        await host.assert_nothing_is_used()


async def test_a_machine_in_no_slot_of_ours_is_given_up(tmp_path: Path) -> None:
    engine, made = await left(tmp_path, 2)
    async with reopen(tmp_path, engine, slots=1, memory_mb=10_000) as host:
        states = {sandbox: await view(host, sandbox) for sandbox in made}
        assert sorted(found["state"] for found in states.values()) == ["error", "running"]
        (lost,) = host.services.recovery.lost
        assert states[lost]["reason"] == NO_SLOT
        assert len(engine.machines) == 1


async def test_a_guest_that_does_not_answer_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.reconcile.recover.ANSWER_LIMIT_S", 0.1)
    engine, (busy, other) = await left(tmp_path, 2)
    guest = engine.guest_of(busy)
    guest.says["/health"] = SILENT
    async with reopen(tmp_path, engine) as host:
        assert sorted(host.services.recovery.adopted) == sorted([busy, other])
        guest.says.clear()
        assert (await host.exec(busy, "echo on")).status == 200


@pytest.mark.parametrize("said", [b"garbage\r\n\r\n", refusal(500, "internal")])
async def test_a_guest_that_answers_nonsense_is_kept(tmp_path: Path, said: bytes) -> None:
    engine, (sandbox,) = await left(tmp_path)
    engine.guest_of(sandbox).says["/health"] = said
    async with reopen(tmp_path, engine) as host:
        assert await host.state(sandbox) == "running"


async def test_a_guest_that_is_somebody_else_is_given_up(tmp_path: Path) -> None:
    engine, (wrong, right) = await left(tmp_path, 2)
    engine.guest_of(wrong).health["id"] = "sb-aaaaaaaaaaaaaaaa"
    async with reopen(tmp_path, engine) as host:
        found = await view(host, wrong)
        assert found["state"] == "error"
        assert "somebody else" in found["reason"]
        assert (host.services.recovery.lost, host.services.recovery.adopted) == ([wrong], [right])
        await destroy_all(host, right)


async def test_a_machine_that_cannot_be_adopted_costs_its_own_sandbox_only(tmp_path: Path) -> None:
    engine, made = await left(tmp_path, 3)
    bad = made[1]
    adopt = engine.adopt
    machine = engine.machine_of(bad)

    async def refuse(machine_id: str, slot: Slot) -> Machine:
        if machine_id == machine:
            raise EngineError("adopting", machine_id, hint="the test says so")
        return await adopt(machine_id, slot)

    engine.adopt = refuse  # type: ignore[method-assign]
    async with reopen(tmp_path, engine) as host:
        assert "could not be taken over" in (await view(host, bad))["reason"]
        assert sorted(host.services.recovery.adopted) == sorted([made[0], made[2]])
        await destroy_all(host, made[0], made[2])


async def test_a_deadline_that_passed_meanwhile_is_kept_at_once(tmp_path: Path) -> None:
    engine, (sandbox,) = await left(tmp_path, timeout_sec=3600)
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        await ledger.write(lambda db: db.execute("UPDATE sandboxes SET expires_ms = 1"))
    async with reopen(tmp_path, engine) as host:
        await host.until(lambda: not engine.machines)
        found = await view(host, sandbox)
        assert (found["state"], found["reason"]) == ("stopped", "its time was up")
        await host.assert_nothing_is_used()


async def test_a_deadline_that_passed_meanwhile_pauses_if_that_is_the_rule(tmp_path: Path) -> None:
    engine, (sandbox,) = await left(tmp_path, on_timeout="pause")
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        await ledger.write(lambda db: db.execute("UPDATE sandboxes SET expires_ms = 1"))
    async with reopen(tmp_path, engine) as host:
        await host.until(lambda: not engine.machines)
        assert await host.state(sandbox) == "paused"
        await destroy_all(host, sandbox)


async def test_a_pause_that_lasted_too_long_meanwhile_ends(tmp_path: Path) -> None:
    engine, sandbox = await paused(tmp_path, paused_sec=3600)
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        await ledger.write(lambda db: db.execute("UPDATE sandboxes SET paused_ms = 1"))
    async with reopen(tmp_path, engine) as host:
        await host.until(lambda: not engine.saved)
        found = await view(host, sandbox)
        assert (found["state"], found["reason"]) == ("stopped", "it was paused for too long")


async def test_machines_that_nobody_has_are_removed(tmp_path: Path) -> None:
    engine, (sandbox,) = await left(tmp_path)
    async with open_host(tmp_path, engine=engine) as host:
        _, slot = host.slots.take_nowait(), host.slots.take_nowait()  # the first is in use
        engine._start("vm-stray", slot)
        engine.saved.add("vm-disk")
    async with reopen(tmp_path, engine) as host:
        assert host.services.recovery.removed == ["vm-disk", "vm-stray"]
        assert (list(engine.machines), engine.saved) == ([engine.machine_of(sandbox)], set())


async def test_a_machine_that_cannot_be_ended_costs_nobody_else_the_start(tmp_path: Path) -> None:
    engine, (sandbox,) = await left(tmp_path)
    engine.saved.add("vm-disk")
    engine.broken.add("destroy")
    async with reopen(tmp_path, engine) as host:
        assert host.services.recovery.removed == []
        assert engine.saved == {"vm-disk"}
        engine.broken.clear()
        assert await host.state(sandbox) == "running"
        assert host.services.recovery.adopted == [sandbox]
        engine.saved.clear()
        await destroy_all(host, sandbox)


async def test_events_go_on_where_they_were_without_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.sandboxes.timeline.BEGIN_AFTER_S", 0.0)
    engine = FakeEngine()

    async def told(host: Host) -> list[int]:
        page = (await host.ask("GET", f"/v1/sandboxes/{sandbox}/events?limit=1000")).json["events"]
        assert [event["seq"] for event in page] == list(range(1, len(page) + 1))
        return [event["data"]["n"] for event in page if event["kind"] == "process_started"]

    async with open_host(tmp_path, engine=engine) as host:
        sandbox = await host.create()
        guest = engine.guest_of(sandbox)
        for number in range(5):
            guest.tell("process_started", n=number)
        async with host.follow(f"/v1/sandboxes/{sandbox}/events") as stream:
            while (event := await stream.next()) is None or event[2]["data"].get("n") != 4:
                pass
        assert await told(host) == list(range(5))
    for number in range(5, 8):  # while nobody listens
        guest.tell("process_started", n=number)
    async with reopen(tmp_path, engine) as host:
        async with host.follow(f"/v1/sandboxes/{sandbox}/events") as stream:
            while (event := await stream.next()) is None or event[2]["data"].get("n") != 7:
                pass
        assert await told(host) == list(range(8))
        assert guest.asked.count("/events?after=5") == 1
