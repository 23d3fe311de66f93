"""What an engine promises of the machines that it restores, while they live."""

import asyncio
import contextlib
import os
import random
import re
import signal
from collections.abc import AsyncIterator

import pytest

from poold.commands import Output, run
from poold.engines import Machine
from poold.errors import EngineError
from tests.conformance.bench import LIMIT_S, QEMU, Bench, new_id, until
from tests.conformance.cancelling import cancelled_at, places

COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done"


async def test_a_restored_machine_is_paused_and_answers_once_resumed(bench: Bench) -> None:
    async with bench.machine(running=False) as machine:
        assert not await bench.answers(machine, within_s=0.3)
        await bench.engine.resume(machine)
        assert await bench.answers(machine, within_s=LIMIT_S)


async def test_what_was_asked_of_a_paused_machine_is_answered_once_resumed(bench: Bench) -> None:
    async with bench.machine(running=False) as machine, bench.guest(machine) as guest:
        asked = asyncio.create_task(guest.call("GET", "/health"))
        await asyncio.wait({asked}, timeout=0.2)
        assert not asked.done()
        await bench.engine.resume(machine)
        assert (await asked)["generation"] == 0


class Counter:
    """A process in a machine that counts, and what arrived of it."""

    def __init__(self) -> None:
        self.text = ""

    @property
    def numbers(self) -> list[int]:
        return [int(line) for line in re.findall(r"(\d+)\n", self.text)]

    async def more(self) -> None:
        seen = len(self.text)
        await until(lambda: len(self.text) > seen + 10)

    async def falls_silent(self) -> None:
        """What was on its way when the machine stopped may still arrive."""
        async with asyncio.timeout(LIMIT_S):
            seen = -1
            while seen != len(self.text):
                seen = len(self.text)
                await asyncio.sleep(0.5)


@contextlib.asynccontextmanager
async def _counting(bench: Bench, machine: Machine) -> AsyncIterator[Counter]:
    counter = Counter()

    async def read() -> None:
        async with bench.guest(machine) as guest:
            async for said in run(guest, bench.script(COUNT)):
                if isinstance(said, Output):
                    counter.text += said.data.decode()

    reading = asyncio.create_task(read())
    try:
        await counter.more()
        yield counter
    finally:
        reading.cancel()
        await asyncio.wait({reading})


async def test_pausing_stops_what_runs_and_resuming_lets_it_go_on_where_it_was(bench: Bench) -> None:
    async with bench.machine() as machine, _counting(bench, machine) as counter:
        for _ in range(2):
            await bench.engine.pause(machine)
            await counter.falls_silent()
            await bench.engine.resume(machine)
            await counter.more()
        assert counter.numbers == list(range(1, len(counter.numbers) + 1))


async def test_pausing_twice_and_resuming_twice_changes_nothing(bench: Bench) -> None:
    async with bench.machine() as machine, _counting(bench, machine) as counter:
        await bench.engine.pause(machine)
        await bench.engine.pause(machine)
        await counter.falls_silent()
        await bench.engine.resume(machine)
        await counter.more()
        await bench.engine.resume(machine)
        await counter.more()
        assert await bench.answers(machine, within_s=LIMIT_S)


async def test_pauses_and_resumes_at_the_same_time_end_with_the_last(bench: Bench) -> None:
    async with bench.machine() as machine:
        pause, resume = bench.engine.pause, bench.engine.resume
        await asyncio.gather(*(change(machine) for change in (pause, resume, pause, pause, resume)))
        assert await bench.answers(machine, within_s=LIMIT_S)


async def test_what_a_machine_stopped_itself_stays_stopped_when_it_is_resumed(bench: Bench) -> None:
    state = "cut -d' ' -f3 /proc/$(cat pid)/stat"
    async with bench.machine() as machine:
        await bench.sh(machine, "sleep 1000 >/dev/null 2>&1 & echo $! > pid; kill -STOP $!")
        await bench.engine.pause(machine)
        await bench.engine.resume(machine)
        assert await bench.sh(machine, state) == (0, "T\n")


async def test_each_machine_has_files_of_its_own(bench: Bench) -> None:
    async with bench.machine() as one, bench.machine() as other:
        assert await bench.sh(one, "echo mine > file; cat file") == (0, "mine\n")
        assert await bench.sh(other, "test ! -e file") == (0, "")
    async with bench.machine() as later:
        assert await bench.sh(later, "test ! -e file") == (0, "")


async def test_a_machine_lives_in_a_session_of_its_own(bench: Bench) -> None:
    async with bench.machine() as machine:
        assert os.getsid(machine.pid) == machine.pid


@pytest.mark.parametrize("running", [True, False])
async def test_a_machine_that_is_killed_says_so_and_cannot_be_used(bench: Bench, running: bool) -> None:
    async with bench.machine(running=running) as machine:
        os.kill(machine.pid, signal.SIGKILL)
        async with asyncio.timeout(LIMIT_S):
            reason = await machine.ended
        assert "SIGKILL" in reason
        async with asyncio.timeout(LIMIT_S):
            for use in (bench.engine.dial, bench.engine.resume, bench.engine.pause):
                with pytest.raises(EngineError):
                    await use(machine)


async def test_a_restore_cancelled_at_any_wait_leaves_nothing_and_the_slot_usable(bench: Bench) -> None:
    snapshot = await bench.snapshot()
    slot = bench.slots.take_nowait()
    for place in places():
        machine = await cancelled_at(place, bench.engine.restore(snapshot, slot, new_id()))
        if machine is not None:
            break
        assert await bench.traces() == [], f"cancelled at wait {place}"
    assert place > 3
    assert machine is not None
    await bench.engine.resume(machine)
    assert await bench.answers(machine, within_s=LIMIT_S)
    await bench.engine.destroy(machine.id)


async def test_a_restore_cancelled_at_any_time_leaves_nothing(bench: Bench) -> None:
    snapshot = await bench.snapshot()
    slot = bench.slots.take_nowait()
    chance = random.Random("restores")
    for delay_s in [chance.uniform(0, 0.2) for _ in range(10)]:
        machine_id = new_id()
        restore = asyncio.create_task(bench.engine.restore(snapshot, slot, machine_id))
        await asyncio.wait({restore}, timeout=delay_s)
        if restore.done():
            await bench.engine.destroy(machine_id)
        restore.cancel()
        await asyncio.wait({restore})
        assert await bench.traces() == [], f"cancelled after {delay_s:.3f} s"


@pytest.mark.parametrize("engine_name", [QEMU], indirect=True)
async def test_a_machine_that_fills_its_disk_fills_no_other(bench: Bench) -> None:
    async with bench.machine() as greedy, bench.machine() as other:
        exit_code, said = await bench.sh(greedy, "dd if=/dev/zero of=big bs=1M count=1024")
        assert exit_code != 0
        assert "No space left" in said
        assert await bench.sh(other, "dd if=/dev/zero of=small bs=1M count=8 2>/dev/null; wc -c < small") == (
            0,
            f"{8 << 20}\n",
        )
