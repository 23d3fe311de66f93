"""What `destroy` promises, and what a daemon finds of the one before it."""

import asyncio
import os
import random
import sys
from pathlib import Path

import pytest

from poold import processes
from poold.engines import Found
from poold.errors import EngineError
from tests.conformance.bench import QEMU, REPOSITORY, Bench, new_id, open_bench, until


@pytest.mark.parametrize("running", [True, False])
async def test_destroy_removes_every_trace_and_may_be_repeated(bench: Bench, running: bool) -> None:
    async with bench.machine(running=running) as machine:
        assert bench.engine.found() == [Found(machine.id, machine.pid, is_saved=False, uid=bench.uid_of(machine))]
        await bench.engine.destroy(machine.id)
        assert await bench.traces() == []
        assert bench.engine.found() == []
        async with asyncio.timeout(1):
            assert await machine.ended
        await bench.engine.destroy(machine.id)


async def test_destroying_a_machine_that_never_was_succeeds(bench: Bench) -> None:
    await bench.engine.destroy(new_id())


async def test_destroys_of_one_machine_at_the_same_time_all_succeed(bench: Bench) -> None:
    async with bench.machine() as machine:
        await asyncio.gather(*(bench.engine.destroy(machine.id) for _ in range(4)))
        assert await bench.traces() == []


async def test_destroy_ends_what_was_started_in_a_machine_also_what_hid(bench: Bench) -> None:
    mark = f"{random.randint(10**6, 10**7)}.25"
    hiding = f"setsid sh -c 'setsid sleep {mark} & setsid sleep {mark} &' >/dev/null 2>&1 </dev/null"
    async with bench.machine() as machine:
        assert await bench.sh(machine, hiding) == (0, "")
        if bench.name != QEMU:  # a VM's processes are not the host's
            await until(lambda: len(processes.find(mark)) == 2)
        await bench.engine.destroy(machine.id)
        assert processes.find(mark) == []


async def test_destroy_spares_other_machines(bench: Bench) -> None:
    async with bench.machine() as one, bench.machine() as other:
        await bench.engine.destroy(one.id)
        assert [found.id for found in bench.engine.found()] == [other.id]
        assert await bench.sh(other, "echo here") == (0, "here\n")


async def test_a_folder_that_its_owner_may_not_write_to_is_removed_all_the_same(bench: Bench) -> None:
    async with bench.machine() as machine:
        assert await bench.sh(machine, "mkdir -p a/b; touch a/b/c; ln -s /etc a/link; chmod 0 a/b; chmod 0 a") == (
            0,
            "",
        )
        await bench.engine.destroy(machine.id)
        assert await bench.traces() == []


async def test_a_later_engine_finds_and_ends_the_machines_of_a_former_one(bench: Bench) -> None:
    async with bench.machine() as machine:
        bench.engine.close()
        bench.engine = bench.open_engine()
        assert not machine.ended.done(), "closing an engine must not end its machines"
        assert bench.engine.found() == [Found(machine.id, machine.pid, is_saved=False, uid=bench.uid_of(machine))]
        await bench.engine.destroy(machine.id)
        assert await bench.traces() == []


async def test_a_machine_survives_its_daemon_and_is_ended_by_the_next(bench: Bench) -> None:
    await bench.snapshot()
    run_dir = bench.folder / "run" / "doomed"
    argv = ["-m", "tests.conformance.doomed", bench.name, str(bench.folder), str(run_dir)]
    daemon = await asyncio.create_subprocess_exec(sys.executable, *argv, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE)
    said, _ = await daemon.communicate()
    assert daemon.returncode == 0
    machine_id, pid = said.decode().split()
    assert os.getsid(int(pid)) == int(pid)
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    (found,) = bench.engine.found()
    assert (found.id, found.pid, found.is_saved) == (machine_id, int(pid), False)
    await bench.engine.destroy(machine_id)
    async with open_bench(bench.name, bench.folder, run_dir):
        pass  # the next daemon removes the slots of the one that died
    assert await bench.traces() == []


async def test_a_machine_that_cannot_be_restored_is_an_engine_error_and_leaves_nothing(bench: Bench) -> None:
    snapshot = await bench.snapshot()
    slot = bench.slots.take_nowait()
    engine = bench.open_engine()  # which has not held the snapshot's memory yet
    hidden = snapshot.folder.with_name("hidden")
    snapshot.folder.rename(hidden)
    try:
        with pytest.raises(EngineError):
            await engine.restore(snapshot, slot, new_id())
    finally:
        hidden.rename(snapshot.folder)
        engine.close()
    assert await bench.traces() == []
