"""A drain that does not come to its end leaves everything as it was, or gives up what it must, and says so by name."""

import asyncio
from pathlib import Path

import pytest
from drain_members import HIBERNATED, LIMITS, RUNNING, a_cluster, all_of, handed_over, looking, until

from contract.models import Caller
from contract.tasks import CreateTask
from poold.drain import CannotDrain
from poold.ledger import audit, drains

BUSY_S = 600


async def test_what_cannot_be_moved_keeps_all_of_it_here_and_everything_runs_on(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b"), cluster.member("a") as member:
        names = [await member.create() for _ in range(2)]
        member.engine.broken.add("save")
        told = await all_of(await member.drain())
        assert (told[-1]["to"], told[-1]["undone"]) == (None, "not everything could be moved")
        assert set(told[-1]["failed"]) == set(names)  # type: ignore[call-overload]
        assert await member.states() == dict.fromkeys(names, RUNNING)
        assert not member.host.is_draining
        member.engine.broken.clear()
        assert await member.create()
        assert await member.ledger.read(drains.under_way) is None
        assert await member.ledger.read(drains.wanted) == {}
        rows = await member.ledger.read(lambda db: audit.listed(db, limit=100, owner="operator"))
        assert [row.action for row in rows] == ["host.drain", "host.drain_undone"]


async def test_one_that_is_stuck_is_undone_when_its_time_is_over(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b"), cluster.member("a") as member:
        stuck, asleep = await member.create(), await member.create()
        await member.host.pause(asleep)
        member.engine.held.add("parts")
        progress = await member.drain(timeout_s=1.0)
        told = await all_of(progress)
        assert told[-1]["undone"] == "not everything could be moved"
        assert told[-1]["failed"] == dict.fromkeys((stuck, asleep), "the drain's time was over")
        member.engine.held.clear()
        assert await member.states() == {stuck: RUNNING, asleep: "paused"}
        await member.host.hibernate(asleep)  # the store is used again


async def test_an_operation_that_does_not_end_keeps_no_drain_from_ending(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b"), cluster.member("a") as member:
        name = await member.create()
        await member.host.pause(name)
        member.engine.held.add("load")
        resuming = asyncio.create_task(member.host.resume(name))
        await until(lambda: member.engine.calls["load"])
        ending = asyncio.create_task(all_of(await member.drain(timeout_s=0.5)))
        await asyncio.sleep(1.0)
        member.engine.held.clear()
        await resuming
        assert (await ending)[-1]["undone"] == "not everything could be moved"
        assert (await member.states(), member.host.is_draining) == ({name: RUNNING}, False)


async def test_forced_it_gives_up_what_cannot_be_moved_and_names_it(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b") as other:
        told: list[dict[str, object]] = []
        with handed_over():
            async with cluster.member("a") as member, looking(other):
                lost = await member.create()
                member.engine.broken.add("save")
                told = await all_of(await member.drain(is_forced=True))
                await asyncio.Event().wait()
        assert list(told[-1]["failed"]) == [lost]  # type: ignore[call-overload]
        assert await other.states() == {lost: "error"}
        assert (await other.host.get(lost)).reason.startswith("host_drained: it could not be moved")  # type: ignore[union-attr]
        assert member.engine.machines == {}


async def test_what_finds_no_room_there_sleeps_and_says_why(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b", slots=1) as other:
        told: list[dict[str, object]] = []
        with handed_over():
            async with cluster.member("a") as member, looking(other):
                names = [await member.create(auto_resume=True) for _ in range(2)]
                with pytest.raises(CannotDrain, match=r"b has room for 1 machines, and 2 run here.*--force"):
                    await member.drain()
                assert not member.host.is_draining
                told = await all_of(await member.drain(is_forced=True))
                await asyncio.Event().wait()
        (moved,), (asleep,) = told[-1]["moved"], told[-1]["asleep"]  # type: ignore[misc, has-type]
        assert {moved, asleep} == set(names)
        states = await other.states()
        # A resume that finds no room has brought it to that host's disk.
        assert (states[moved], states[asleep]) == (RUNNING, "paused")
        assert "there is no room for it on b" in (await other.host.get(asleep)).reason  # type: ignore[operator]
        await other.host.destroy(moved)
        async with other.host.use(asleep):
            assert (await other.host.get(asleep)).reason is None


async def test_it_can_be_called_off_until_it_is_handed_over(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b"), cluster.member("a") as member:
        name = await member.create()
        member.engine.held.add("parts")
        progress = await member.drain(timeout_s=BUSY_S)
        assert await member.drain() is progress  # whoever asks again hears of the same one
        await until(lambda: member.engine.calls["parts"])
        calling_off = asyncio.create_task(member.departure.undrain())
        told = await all_of(progress)
        await calling_off
        member.engine.held.clear()
        assert told[-1]["undone"] == "the operator called it off"
        await until(lambda: member.engine.calls["load"])
        assert (await member.states(), member.host.is_draining) == ({name: RUNNING}, False)


async def test_who_listens_late_hears_all_of_it_and_who_leaves_ends_nothing(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b"), cluster.member("a") as member:
        await member.create()
        member.engine.broken.add("save")
        progress = await member.drain()
        async for _ in progress.listen():
            break
        first, late = await all_of(progress), await all_of(progress)
        assert first == late
        assert [each["step"] for each in first[:2]] == ["begun", "emptying"]


async def test_a_task_that_waits_goes_with_the_ledger_and_its_secrets(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b") as other:
        other.engine.held.add("restore")  # its machine never comes
        with handed_over():
            async with cluster.member("a", slots=1) as member, looking(other):
                full = await member.create()
                body = b'{"agent": "mock", "prompt": "run true", "env": {"WORD": "ahem-4711"}}'
                task = await member.tasks.create(CreateTask.parse(body, LIMITS), Caller("ann"))
                await all_of(await member.drain())
                await asyncio.Event().wait()
        assert await other.states() | {full: RUNNING} == await other.states()
        moved = await other.tasks.get(task.id)
        assert (moved.state in ("queued", "planning"), moved.reason) == (True, None)
        assert other.tasks.tools.secrets_of(task.id).env == {"WORD": "ahem-4711"}


async def test_a_drain_that_was_overdue_when_poold_was_started_is_undone(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b"):
        engine = None
        async with cluster.member("a") as member:
            engine, name = member.engine, await member.create()
            row = drains.Row("dr-1", 1, 2, is_forced=True, why="a test")
            await member.ledger.write(lambda db: (drains.begin(db, row), drains.want(db, row)))
            await member.host.hibernate(name)
        async with cluster.member("a", engine=engine) as again:
            await until(lambda: not again.host.is_draining)
            await until(lambda: again.engine.calls["load"])

            async def runs() -> bool:
                return await again.states() == {name: RUNNING} and not await again.ledger.read(drains.wanted)

            await until(runs)


async def test_a_host_that_is_drained_itself_brings_nothing_back(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("a") as member:
        name = await member.create()
        row = drains.Row("dr-1", 1, 2, is_forced=False, why="a test")
        await member.ledger.write(lambda db: drains.want(db, row))
        await member.host.hibernate(name)
        member.host.is_draining = True
        await member.returning.add(name)
        await member.returning.over([name])
        assert await member.states() == {name: HIBERNATED}
        assert await member.ledger.read(drains.wanted) == {name: "dr-1"}
        member.host.is_draining = False
        await member.returning.over(await member.returning.all())
        assert await member.states() == {name: RUNNING}
