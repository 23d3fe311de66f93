"""What cannot be done now, because the host itself is in trouble, is done later, and costs nobody else."""

import asyncio
from pathlib import Path

import pytest

from contract.models import Caller, Shape
from contract.states import Event
from poold.engines import Machine, Settle, Snapshot
from poold.errors import EngineError, LedgerFull, NetError
from poold.images import Image
from poold.pool.pool import BOOTS
from poold.sandboxes.means import Means
from poold.slots import Slot
from tests.unit.poold.poold_fake_engine import FakeEngine
from tests.unit.poold.poold_fake_guest import refusal
from tests.unit.poold.poold_host import SLOTS, Host, open_host
from tests.unit.poold.poold_states import NOTHING, in_use, pause, resume, view

pytestmark = pytest.mark.usefixtures("nothing_warm")


@pytest.fixture
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.sandboxes.host.RETRY_S", 0.02)
    monkeypatch.setattr("poold.pool.ends.RETRY_S", 0.02)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the ledger's disk is full when a failure is to be written down."""
    is_full = [False]
    move = Means.move

    async def refused(self: Means, sandbox_id: str, event: Event, caller: Caller, **more: object) -> object:
        if is_full[0] and event is Event.FAIL:
            raise LedgerFull(Path("/ledger"))
        return await move(self, sandbox_id, event, caller, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Means, "move", refused)
    return is_full


async def until_nothing_is_used(host: Host) -> None:
    await host.until(lambda: in_use(host) == NOTHING)


class Restless(FakeEngine):
    """Its first machines end while they boot."""

    def __init__(self, deaths: int) -> None:
        super().__init__()
        self.deaths = deaths

    async def build_snapshot(self, image: Image, shape: Shape, slot: Slot, settle: Settle) -> Snapshot:
        async def dies(machine: Machine) -> None:
            if self.calls["build_snapshot"] <= self.deaths:
                self.kill(machine.id, "the guest found its timers wrong")
            await settle(machine)

        return await super().build_snapshot(image, shape, slot, dies)


async def test_a_machine_that_ends_while_it_boots_is_booted_again(tmp_path: Path) -> None:
    async with open_host(tmp_path, engine=Restless(BOOTS - 1)) as host:
        assert await host.state(await host.create()) == "running"
        assert host.engine.calls["build_snapshot"] == BOOTS


async def test_one_that_never_boots_is_given_up_and_nothing_is_left(tmp_path: Path) -> None:
    async with open_host(tmp_path, engine=Restless(BOOTS)) as host:
        reply = await host.ask("POST", "/v1/sandboxes", {})
        assert (reply.status, reply.code) == (502, "machine_died")
        assert "timers" in reply.json["error"]["message"]
        assert host.engine.calls["build_snapshot"] == BOOTS
        await until_nothing_is_used(host)


@pytest.mark.usefixtures("soon_again")
async def test_a_slot_that_could_not_be_made_new_is_given_back_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        give_back = host.slots.give_back

        async def fail(slot: Slot) -> None:
            raise NetError("making", f"slot {slot.number}")

        monkeypatch.setattr(host.slots, "give_back", fail)
        assert (await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).status == 500
        assert host.slots.free == SLOTS - 1
        monkeypatch.setattr(host.slots, "give_back", give_back)
        await until_nothing_is_used(host)
        assert (await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).status == 200


@pytest.mark.usefixtures("soon_again")
async def test_a_machine_of_a_failed_create_that_could_not_be_removed_is_removed_later(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        await host.ask("DELETE", f"/v1/sandboxes/{await host.create()}")  # there is a snapshot from now on
        host.engine.guests_say["/identity"] = refusal(500, "internal")
        host.engine.broken.add("destroy")
        assert (await host.ask("POST", "/v1/sandboxes")).status == 502
        assert host.slots.free == SLOTS - 1
        host.engine.broken.clear()
        await until_nothing_is_used(host)


@pytest.mark.usefixtures("soon_again")
async def test_a_machine_of_a_failed_pause_that_could_not_be_ended_is_removed_later(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        host.engine.broken |= {"halt", "destroy"}
        assert (await pause(host, sandbox)).status == 500
        assert host.slots.free == SLOTS - 1
        host.engine.broken.clear()
        await until_nothing_is_used(host)


async def test_a_machine_whose_processors_cannot_be_started_again_is_given_up(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        host.engine.broken |= {"save", "resume"}
        assert (await pause(host, sandbox)).status == 500
        assert await host.state(sandbox) == "error"
        await until_nothing_is_used(host)


async def test_a_warm_machine_that_does_not_end_costs_neither_the_daemon_nor_its_place_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poold.pool.ends.RETRY_S", 0.02)
    async with open_host(tmp_path, warm=1) as host:
        await host.ready()
        host.engine.broken.add("destroy")
        host.pool.keeper.strain(True)
        await host.until(lambda: host.engine.calls["destroy"] > 1)
        assert (await host.ask("GET", "/healthz")).status == 200
        assert host.slots.free == SLOTS - 1
        host.engine.broken.clear()
        await until_nothing_is_used(host)


async def test_a_resume_waits_for_what_was_left_of_the_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.pool.ends.RETRY_S", 60.0)
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        host.engine.broken |= {"load", "halt"}
        assert (await resume(host, sandbox)).status == 500
        assert await host.state(sandbox) == "paused"
        assert host.slots.free == SLOTS - 1  # something may still be in it
        assert (await resume(host, sandbox)).status == 500
        assert host.slots.free == SLOTS - 1  # and nothing more is taken
        host.engine.broken.clear()
        assert (await resume(host, sandbox)).status == 200
        assert (await host.exec(sandbox, "echo on")).status == 200
        await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        await host.assert_nothing_is_used()


async def test_a_machine_that_cannot_be_ended_does_not_keep_the_daemon_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    async with open_host(tmp_path, engine=engine) as host:
        sandbox, other = await host.create(), await host.create()
    held = engine.machine_of(sandbox)
    engine.guests[held].identity["id"] = "sb-somebody"
    destroy = engine.destroy

    async def fail(machine_id: str) -> None:
        if machine_id == held:
            raise EngineError("killing", machine_id)
        await destroy(machine_id)

    monkeypatch.setattr(engine, "destroy", fail)
    async with open_host(tmp_path, engine=engine, recover=True) as host:
        assert (await host.state(sandbox), await host.state(other)) == ("error", "running")
        assert host.slots.free == SLOTS - 2
        monkeypatch.setattr(engine, "destroy", destroy)
        assert (await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).status == 200
        await host.ask("DELETE", f"/v1/sandboxes/{other}")
        await host.assert_nothing_is_used()


async def test_a_saved_state_that_cannot_be_removed_does_not_cost_a_sandbox_that_is_taken_over(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with open_host(tmp_path, engine=engine) as host:
        sandbox = await host.create()
    engine.broken.add("discard")
    async with open_host(tmp_path, engine=engine, recover=True) as host:
        assert (await host.exec(sandbox, "echo on")).status == 200


@pytest.mark.usefixtures("soon_again")
@pytest.mark.parametrize("trouble", ["the guest is silent", "nothing can be saved"])
async def test_a_deadline_is_kept_also_if_a_pause_for_idleness_fails(tmp_path: Path, trouble: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(idle_sec=10, timeout_sec=20)
        if trouble == "the guest is silent":
            host.engine.guest_of(sandbox).says["/health"] = refusal(500, "internal")
        else:
            host.engine.broken.add("save")
        await host.later(15, sandbox)
        assert await host.state(sandbox) == "running"
        await host.later(15, sandbox)
        await host.until_state(sandbox, "stopped")
        await host.assert_nothing_is_used()


async def test_a_pause_that_fails_is_not_tried_again_at_once(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(on_timeout="pause", timeout_sec=20)
        host.engine.broken.add("save")
        await host.later(30, sandbox)
        await host.until(lambda: host.engine.calls["save"] > 0)
        for _ in range(20):
            assert (await host.exec(sandbox, "echo on")).status in (200, 409)
        assert host.engine.calls["save"] < 20


async def test_a_guest_cannot_tell_of_the_end_of_its_sandbox(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        guest = host.engine.guest_of(sandbox)
        guest.tell("stopped", reason="so I say")
        async with host.follow(f"/v1/sandboxes/{sandbox}/events") as stream:
            told = None
            while told is None or told[1] != "stopped":
                told = await stream.next()
            assert told[2]["by"] == "guest"
            guest.tell_raw(b'event: stopped\ndata: {"reason": "so I say"}\n\n')  # as our own events have no number
            await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
            assert [(kind, data["by"]) for _, kind, data in await stream.rest()] == [("stopped", "host")]


@pytest.mark.parametrize("code", ["256", str(2**63), "-1"])
async def test_an_exit_code_that_no_program_has_is_the_guests_fault(tmp_path: Path, code: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        reply = await host.exec(sandbox, f"fail {code}")
        assert (reply.status, reply.code) == (502, "guest_failed")
        assert [entry.action for entry in await host.audit(sandbox=sandbox)][-2:] == ["exec", "exec.end"]


async def test_who_leaves_a_terminal_that_takes_no_input_is_seen_to_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poold.link.http.STALL_LIMIT_S", 0.1)
    async with open_host(tmp_path) as host:
        sandbox = await host.create(idle_sec=10)

        async def stuck(*_: object) -> None:
            await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(host.engine.guest_of(sandbox), "_stdin", stuck)
        async with host.dial(f"/v1/sandboxes/{sandbox}/terminal") as socket:
            await socket.recv()
            for _ in range(60):
                await socket.send(b"x" * 60_000)
        live = next(live for live in host.sandboxes.machines() if live.sandbox.id == sandbox)
        await host.until(lambda: live.users == 0)


@pytest.mark.usefixtures("soon_again")
async def test_a_resume_that_failed_when_nothing_could_be_written_down_is_told_of_later(
    tmp_path: Path, full: list[bool]
) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        full[0] = True
        host.engine.guests[host.engine.machine_of(sandbox)].says["/identity"] = refusal(500, "internal")
        assert (await resume(host, sandbox)).status == 502
        assert in_use(host) == NOTHING
        full[0] = False
        await host.until_state(sandbox, "error")
        assert "internal" in (await view(host, sandbox))["reason"]
