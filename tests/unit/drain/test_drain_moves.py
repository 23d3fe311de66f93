"""Everything of a host goes to another one, and what ran there runs here, under the same id."""

import asyncio
from pathlib import Path

import pytest
from drain_members import HIBERNATED, RUNNING, a_cluster, all_of, handed_over, looking, until

from contract.errors import WrongState
from contract.models import Caller
from contract.states import ASLEEP
from poold.drain import CannotDrain
from poold.drain.emptying import AT_ONCE


async def test_what_ran_runs_at_the_other_host_and_what_slept_sleeps_there(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b") as other:
        told: list[dict[str, object]] = []
        with handed_over():
            async with cluster.member("a") as drained:
                running, paused = [await drained.create() for _ in range(2)], await drained.create()
                await drained.host.pause(paused)
                asleep = await drained.create()
                await drained.host.hibernate(asleep)
                async with looking(other):
                    told = await all_of(await drained.drain())
                assert drained.engine.machines == {}
                assert other.engine.calls["load"] == 2
                await asyncio.Event().wait()
        end = told[-1]
        assert (end["kind"], end["to"], end["undone"]) == ("drained", "b", None)
        assert (end["moved"], end["asleep"], end["failed"]) == (dict.fromkeys(running, "b"), {}, {})
        states = await other.states()
        assert states == {**dict.fromkeys(running, RUNNING), paused: HIBERNATED, asleep: HIBERNATED}
        steps = [(each["sandbox"], each["step"]) for each in told[:-1]]
        for name in running:
            mine = [step for sandbox, step in steps if sandbox == name]
            assert mine == ["pausing", "hibernating", "hibernated", "resumed"]
        assert [step for sandbox, step in steps if sandbox == paused] == ["hibernating", "hibernated"]
        assert not [entry async for entry in cluster.store.list("drains/")]
        async with cluster.member("a") as empty:
            assert await empty.states() == {}
            assert empty.host.is_draining
            assert (await all_of(await empty.drain()))[-1]["undone"] is None
            await empty.departure.undrain()
            assert await empty.create()
        async with cluster.member("a") as again:
            assert not again.host.is_draining


async def test_a_host_without_others_says_what_can_be_done(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("a") as alone:
        await alone.create()
        with pytest.raises(CannotDrain, match=r"no other host of the cluster is alive.*--in-place"):
            await alone.drain()
        assert not alone.host.is_draining


@pytest.mark.parametrize("how", ["pause", "hibernate"])
@pytest.mark.parametrize("step", ["save", "parts"])
async def test_what_its_owner_lets_sleep_during_the_drain_stays_asleep(tmp_path: Path, how: str, step: str) -> None:
    """Before the drain comes to it, or while it is put into the store: it runs, as far as its owner knows."""
    asked = Caller(request="rq-1")
    async with a_cluster(tmp_path) as cluster, cluster.member("b") as other:
        with handed_over():
            async with cluster.member("a") as drained:
                names = [await drained.create() for _ in range(AT_ONCE + 1)]
                drained.engine.held.add(step)
                ending = asyncio.create_task(all_of(await drained.drain()))
                await until(lambda: drained.engine.calls[step] == AT_ONCE)
                waits = [live.sandbox.id for live in drained.host.machines()]
                by_hand = waits[0] if step == "save" else next(name for name in names if name not in waits)
                asleep = asyncio.create_task(getattr(drained.host, how)(by_hand, asked))
                await until(lambda: step == "parts" or drained.engine.calls[step] == AT_ONCE + 1)
                drained.engine.held.clear()
                assert (await asleep).state in ASLEEP
                async with looking(other):
                    told = (await ending)[-1]
                names.remove(by_hand)
                assert (told["moved"], told["unknown"]) == (dict.fromkeys(names, "b"), [])
                await asyncio.Event().wait()
        assert await other.states() == {**dict.fromkeys(names, RUNNING), by_hand: HIBERNATED}
        assert (await other.host.resume(by_hand)).state == RUNNING
        await other.host.hibernate(by_hand, asked)
        with pytest.raises(WrongState):  # of one that no drain has put there it is a mistake
            await other.host.pause(by_hand, asked)
