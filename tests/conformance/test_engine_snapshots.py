"""What `build_snapshot` promises."""

import asyncio
import random
import shutil
from dataclasses import replace

import pytest

from poold.engines import Machine
from poold.engines.qemu import argv
from poold.errors import EngineError, MachineDied
from tests.conformance.bench import BOOT_LIMIT_S, PLAIN, QEMU, SHAPE, Bench, failing_settle, new_id, no_settling
from tests.conformance.cancelling import cancelled_at, places


async def _must_not_settle(machine: Machine) -> None:
    raise AssertionError(f"{machine.id} was started")


async def test_a_snapshot_with_the_same_key_is_returned_and_nothing_started(bench: Bench) -> None:
    first = await bench.snapshot()
    slot = bench.slots.take_nowait()
    later_daemon = bench.open_engine()
    assert await bench.engine.build_snapshot(bench.image, SHAPE, slot, _must_not_settle) == first
    assert await later_daemon.build_snapshot(bench.image, SHAPE, slot, _must_not_settle) == first
    later_daemon.close()


async def test_another_image_or_shape_has_another_key(fresh_bench: Bench) -> None:
    slot = fresh_bench.slots.take_nowait()
    asked = [
        (fresh_bench.image, SHAPE),
        (replace(fresh_bench.image, key="1" * 64), SHAPE),
        (fresh_bench.image, replace(SHAPE, memory_mb=256)),
    ]
    built = [await fresh_bench.engine.build_snapshot(*one, slot, no_settling) for one in asked]
    assert len({snapshot.key for snapshot in built}) == len(fresh_bench.snapshots()) == len(asked)


async def test_what_was_written_before_the_snapshot_is_in_every_machine(bench: Bench) -> None:
    for _ in range(2):
        async with bench.machine() as machine:
            assert await bench.sh(machine, "cat before; echo changed > before") == (0, "frozen\n")


@pytest.mark.parametrize("error", [RuntimeError("not settled"), TimeoutError("too late"), EngineError("a", "b")])
async def test_what_settle_raises_is_passed_on_and_nothing_remains(fresh_bench: Bench, error: Exception) -> None:
    slot = fresh_bench.slots.take_nowait()
    with pytest.raises(type(error)) as raised:
        await fresh_bench.engine.build_snapshot(fresh_bench.image, SHAPE, slot, failing_settle(error))
    assert raised.value is error
    assert await fresh_bench.traces() == []
    assert fresh_bench.snapshots() == []
    await fresh_bench.engine.build_snapshot(fresh_bench.image, SHAPE, slot, no_settling)


async def test_a_build_cancelled_at_any_wait_leaves_nothing(fresh_bench: Bench) -> None:
    slot = fresh_bench.slots.take_nowait()
    for place in places():
        build = fresh_bench.engine.build_snapshot(fresh_bench.image, SHAPE, slot, no_settling)
        finished = await cancelled_at(place, build) is not None
        assert await fresh_bench.traces() == [], f"cancelled at wait {place}"
        await _snapshots_are_whole(fresh_bench)
        if finished:
            break
    assert place > 5


async def test_a_build_cancelled_at_any_time_leaves_nothing(fresh_bench: Bench) -> None:
    slot = fresh_bench.slots.take_nowait()
    chance = random.Random("builds")
    for delay_s in [chance.uniform(0, 0.4) for _ in range(6)]:
        build = asyncio.create_task(
            fresh_bench.engine.build_snapshot(fresh_bench.image, SHAPE, slot, fresh_bench.settle)
        )
        await asyncio.wait({build}, timeout=delay_s)
        build.cancel()
        await asyncio.wait({build})
        assert await fresh_bench.traces() == [], f"cancelled after {delay_s:.3f} s"
        await _snapshots_are_whole(fresh_bench)


async def _snapshots_are_whole(bench: Bench) -> None:
    """A cancellation may come too late. Then the snapshot is there, and can be used; we remove it."""
    for folder in bench.snapshots():
        slot = bench.slots.take_nowait()
        snapshot = await bench.engine.build_snapshot(bench.image, SHAPE, slot, _must_not_settle)
        assert snapshot.folder == folder
        # A snapshot's memory may be held by its key, and the next one of this test has the same.
        engine = bench.open_engine()
        machine = await engine.restore(snapshot, slot, new_id())
        await engine.destroy(machine.id)
        engine.close()
        await bench.slots.give_back(slot)
        shutil.rmtree(folder)


async def test_a_machine_that_does_not_come_up_is_told_of_at_once_and_leaves_nothing(fresh_bench: Bench) -> None:
    slot = fresh_bench.slots.take_nowait()
    engine, image = fresh_bench.broken()
    async with asyncio.timeout(5):
        with pytest.raises(EngineError, match=r"failed: ."):
            await engine.build_snapshot(image, SHAPE, slot, fresh_bench.settle)
    engine.close()
    assert await fresh_bench.traces() == []
    assert fresh_bench.snapshots() == []


@pytest.mark.parametrize("engine_name", [PLAIN], indirect=True)
async def test_a_folder_whose_name_is_too_long_for_a_socket_is_refused_with_the_reason(fresh_bench: Bench) -> None:
    slot = fresh_bench.slots.take_nowait()
    shape = replace(SHAPE, image="x" * 64)
    with pytest.raises(EngineError, match="use a shorter folder"):
        await fresh_bench.engine.build_snapshot(fresh_bench.image, shape, slot, no_settling)


@pytest.mark.parametrize("engine_name", [QEMU])
async def test_a_machine_whose_timers_stand_still_does_not_boot(
    fresh_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that none is restored from it. On a busy host the kernel may find its timers too slow to be used."""
    monkeypatch.setattr(argv, "KERNEL_ARGS", f"{argv.KERNEL_ARGS} nolapic_timer")

    async def settle(machine: Machine) -> None:
        async with asyncio.timeout(BOOT_LIMIT_S):
            await asyncio.shield(machine.ended)
        raise MachineDied("it ended")

    slot = fresh_bench.slots.take_nowait()
    with pytest.raises(MachineDied):
        await fresh_bench.engine.build_snapshot(fresh_bench.image, SHAPE, slot, settle)
    assert fresh_bench.snapshots() == []
