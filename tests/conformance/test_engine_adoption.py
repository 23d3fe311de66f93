"""What a daemon finds of the one before it, and how it takes that over."""

import asyncio
import os
import shutil
import signal

import pytest

from poold.engines import Found, Machine
from poold.errors import EngineError
from tests.conformance.bench import LIMIT_S, QEMU, Bench, new_id, until

COUNT = "i=0; while :; do i=$((i+1)); echo $i > count; sleep 0.02; done"
# Its child shares its memory until it is another program, and cannot be that before somebody opens the other end.
STARTS_A_PROGRAM = """
import os
os.mkfifo("fifo")
opened = (os.POSIX_SPAWN_OPEN, 0, "fifo", os.O_RDONLY, 0)
os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opened]), 0)
open("done", "w").close()
"""


def _next_daemon(bench: Bench) -> None:
    """The former one has gone without a farewell: its machines go on, its connections end."""
    bench.engine.close()
    bench.engine = bench.open_engine()


async def _counts(bench: Bench, machine: Machine) -> None:
    await bench.sh(machine, "n=$(cat count); until [ $(cat count || echo 0) -gt ${n:-0} ]; do sleep 0.02; done")


async def test_a_running_machine_is_taken_over_with_all_that_runs_in_it(bench: Bench) -> None:
    async with bench.machine() as machine:
        await bench.sh(machine, f"({COUNT}) >/dev/null 2>&1 </dev/null & echo mine > file")
        _next_daemon(bench)
        assert bench.engine.found() == [Found(machine.id, machine.pid, is_saved=False, uid=bench.uid_of(machine))]
        adopted = await bench.engine.adopt(machine.id, machine.slot)
        assert (adopted.id, adopted.pid, adopted.folder) == (machine.id, machine.pid, machine.folder)
        await bench.engine.resume(adopted)
        assert await bench.sh(adopted, "cat file") == (0, "mine\n")
        await _counts(bench, adopted)
        await bench.engine.pause(adopted)
        assert not await bench.answers(adopted, within_s=0.3)
        await bench.engine.resume(adopted)
        await _counts(bench, adopted)
        await bench.engine.destroy(adopted.id)
        async with asyncio.timeout(LIMIT_S):
            assert await adopted.ended
        assert await bench.traces() == []


async def test_a_paused_machine_is_taken_over_paused(bench: Bench) -> None:
    async with bench.machine() as machine:
        await bench.sh(machine, f"({COUNT}) >/dev/null 2>&1 </dev/null &")
        await bench.engine.pause(machine)
        _next_daemon(bench)
        adopted = await bench.engine.adopt(machine.id, machine.slot)
        assert not await bench.answers(adopted, within_s=0.3)
        await bench.engine.resume(adopted)
        await _counts(bench, adopted)


async def test_a_machine_paused_while_a_program_is_being_started_in_it_goes_on_after_it_is_taken_over(
    bench: Bench,
) -> None:
    async with bench.machine() as machine:
        await bench.sh(machine, f"python3 -c '{STARTS_A_PROGRAM}' >log 2>&1 </dev/null & echo $! > pid")
        await bench.sh(machine, "until grep -q ') D ' /proc/$(cat pid)/stat; do sleep 0.02; done")
        await bench.engine.pause(machine)
        _next_daemon(bench)
        adopted = await bench.engine.adopt(machine.id, machine.slot)
        await bench.engine.resume(adopted)
        assert await bench.sh(adopted, "exec 3>fifo; until [ -e done ]; do sleep 0.02; done; cat log") == (0, "")


async def test_the_end_of_an_adopted_machine_is_told(bench: Bench) -> None:
    async with bench.machine() as machine:
        _next_daemon(bench)
        adopted = await bench.engine.adopt(machine.id, machine.slot)
        os.kill(adopted.pid, signal.SIGKILL)
        async with asyncio.timeout(LIMIT_S):
            assert await adopted.ended
        with pytest.raises(EngineError):
            await bench.engine.dial(adopted)
        await until(lambda: bench.engine.found() == [Found(machine.id, None, is_saved=False)])


async def test_what_cannot_be_adopted_is_refused_and_stays_as_it_was(bench: Bench) -> None:
    async with bench.machine() as machine:
        with pytest.raises(EngineError, match="ours already"):
            await bench.engine.adopt(machine.id, machine.slot)
        with pytest.raises(EngineError, match="no process"):
            await bench.engine.adopt(new_id(), machine.slot)
        assert await bench.sh(machine, "echo here") == (0, "here\n")
        os.kill(machine.pid, signal.SIGKILL)
        await machine.ended
        await until(lambda: bench.engine.found() == [Found(machine.id, None, is_saved=False)])
        with pytest.raises(EngineError, match="no process"):
            await bench.engine.adopt(machine.id, machine.slot)


async def test_found_tells_of_what_runs_what_died_and_what_lost_its_folder(bench: Bench) -> None:
    async with bench.machine() as running, bench.machine() as dead, bench.machine() as lost:
        os.kill(dead.pid, signal.SIGKILL)
        await dead.ended
        shutil.rmtree(lost.folder)
        expected = [
            Found(running.id, running.pid, is_saved=False, uid=bench.uid_of(running)),
            Found(dead.id, None, is_saved=False),
            Found(lost.id, lost.pid, is_saved=False, uid=bench.uid_of(lost)),
        ]
        assert bench.engine.found() == sorted(expected, key=lambda found: found.id)
        _next_daemon(bench)
        await bench.engine.destroy(lost.id)
        await until(lambda: lost.id not in [found.id for found in bench.engine.found()])


@pytest.mark.parametrize("engine_name", [QEMU], indirect=True)
async def test_found_tells_what_is_saved_and_half_a_save_is_removed_by_adoption(bench: Bench) -> None:
    async with bench.machine() as machine:
        await bench.engine.pause(machine)
        await bench.engine.save(machine)
        assert bench.engine.found() == [Found(machine.id, machine.pid, is_saved=True, uid=bench.uid_of(machine))]
        (machine.folder / "saved.tmp").mkdir()
        (machine.folder / "saved.tmp/pages").write_bytes(b"half")
        _next_daemon(bench)
        adopted = await bench.engine.adopt(machine.id, machine.slot)
        assert not (machine.folder / "saved.tmp").exists()
        # A daemon that was killed between a save and its end can finish either way.
        await bench.engine.halt(adopted.id)
        assert bench.engine.found() == [Found(machine.id, None, is_saved=True)]
        loaded = await bench.engine.load(machine.id, machine.slot)
        await bench.engine.resume(loaded)
        await bench.engine.discard(machine.id)
        assert bench.engine.found() == [Found(machine.id, loaded.pid, is_saved=False, uid=bench.uid_of(loaded))]
        assert await bench.sh(loaded, "cat before") == (0, "frozen\n")


@pytest.mark.parametrize("engine_name", [QEMU], indirect=True)
async def test_an_adopted_machine_is_saved_and_loaded_like_any_other(bench: Bench) -> None:
    async with bench.machine() as machine:
        await bench.sh(machine, "echo here > file; echo word > /dev/shm/word")
        _next_daemon(bench)
        adopted = await bench.engine.adopt(machine.id, machine.slot)
        await bench.engine.pause(adopted)
        await bench.engine.save(adopted)
        await bench.engine.halt(adopted.id)
        loaded = await bench.engine.load(machine.id, machine.slot)
        await bench.engine.resume(loaded)
        assert await bench.sh(loaded, "cat file /dev/shm/word") == (0, "here\nword\n")
