"""Operations on one sandbox at the same moment: one after the other, and all that is left is legal."""

import asyncio
import random
from pathlib import Path

import pytest

from contract.errors import WarrenError
from contract.models import Caller
from tests.unit.poold.poold_host import LIMIT_S, Host, open_host
from tests.unit.poold.poold_states import pause

pytestmark = pytest.mark.usefixtures("nothing_warm")


async def test_destroying_waits_for_a_pause_and_wins(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        host.engine.held.add("save")
        pausing = asyncio.create_task(pause(host, sandbox))
        await host.until(lambda: host.engine.calls["save"] == 1)
        destroying = asyncio.create_task(host.ask("DELETE", f"/v1/sandboxes/{sandbox}"))
        await asyncio.sleep(0.05)
        assert not destroying.done()
        host.engine.held.clear()
        assert (await pausing).json["state"] == "paused"
        assert (await destroying).json["state"] == "stopped"
        assert host.engine.saved == set()
        await host.assert_nothing_is_used()


async def test_who_creates_what_is_destroyed_meanwhile_hears_it(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.held.add("restore")
        creating = asyncio.create_task(host.ask("POST", "/v1/sandboxes"))
        async with asyncio.timeout(LIMIT_S):
            while not (found := (await host.ask("GET", "/v1/sandboxes")).json["sandboxes"]):
                await asyncio.sleep(0.005)
        await a_pause_waits(host, found[0]["id"])
        gone = await host.ask("DELETE", f"/v1/sandboxes/{found[0]['id']}")
        assert gone.json["state"] == "stopped"
        assert ((await creating).status, (await creating).code) == (409, "sandbox_stopped")
        await host.assert_nothing_is_used()


async def a_pause_waits(host: Host, sandbox: str) -> None:
    """For the end of the creation; here it is given up before that."""
    pausing = asyncio.ensure_future(host.sandboxes.pause(sandbox))
    await asyncio.sleep(0.02)
    assert not pausing.done()
    pausing.cancel()
    await asyncio.wait([pausing])


ACTIONS = ("pause", "resume", "exec", "exec", "set_timeout", "get", "kill", "destroy")
WEIGHTS = (6, 6, 6, 6, 2, 2, 1, 1)


async def act(host: Host, sandbox: str, name: str, chance: random.Random) -> None:
    await asyncio.sleep(chance.random() * 0.01)
    match name:
        case "exec":
            async with host.sandboxes.use(sandbox) as guest:
                await guest.call("GET", "/health")
        case "kill":
            host.engine.kill(host.engine.machine_of(sandbox), "killed by the test")
        case "set_timeout":
            await host.sandboxes.set_timeout(sandbox, 60)
        case _:
            await getattr(host.sandboxes, name)(sandbox)


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_comes_together_ends_in_one_legal_state(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with open_host(tmp_path) as host:
        made = [await host.create(auto_resume=bool(number % 2)) for number in range(4)]
        for _ in range(4):
            names = chance.choices(ACTIONS, WEIGHTS, k=30)
            doing = [asyncio.ensure_future(act(host, chance.choice(made), name, chance)) for name in names]
            for task in chance.sample(doing, 5):
                asyncio.get_running_loop().call_later(chance.random() * 0.01, task.cancel)
            for outcome in await asyncio.gather(*doing, return_exceptions=True):
                assert outcome is None or isinstance(outcome, WarrenError | asyncio.CancelledError), outcome
        await settled(host, made)
        for sandbox in made:
            await host.sandboxes.destroy(sandbox, Caller())
        assert host.engine.saved == set()
        await host.assert_nothing_is_used()


async def settled(host: Host, made: list[str]) -> None:
    """Every sandbox is in a state that lasts, and uses what belongs to it."""
    await host.until(lambda: all(not machine.ended.done() for machine in host.engine.machines.values()))
    await host.sandboxes._turns.all_over()
    states = [await host.state(sandbox) for sandbox in made]
    assert set(states) <= {"running", "paused", "stopped", "error"}
    assert {live.sandbox.id for live in host.sandboxes.machines()} == {
        sandbox for sandbox, state in zip(made, states, strict=True) if state == "running"
    }
    assert len(host.engine.machines) == states.count("running")
    assert len(host.engine.saved) == states.count("paused")
