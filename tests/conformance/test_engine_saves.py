"""What an engine promises of machines that are saved to disk and loaded again."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.models import Shape
from poold.engines import Found, Machine
from poold.engines.qemu import pages, saved
from poold.errors import EngineError
from tests.conformance.bench import LIMIT_S, LOCAL, PLAIN, QEMU, Bench, new_id, processes_of
from tests.conformance.cancelling import cancelled_at, places

ON_QEMU = pytest.mark.parametrize("engine_name", [QEMU], indirect=True)
COUNT = "i=0; while :; do i=$((i+1)); echo $i > /dev/shm/count; sleep 0.02; done"
WRITE = "while :; do dd if=/dev/urandom of=busy bs=64k count=50; sync; done"
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


async def _start(bench: Bench, machine: Machine, argv: list[str], **more: Any) -> int:
    """A process that goes on when nobody listens."""
    async with bench.guest(machine) as guest:
        request = {"cmd": argv[0], "args": argv[1:], "user": bench.user, **more}
        pid: int = (await guest.call("POST", "/processes?detach=1", request))["pid"]
        return pid


async def _type(bench: Bench, machine: Machine, shell: int, line: str) -> None:
    async with (
        bench.guest(machine) as guest,
        guest.exchange("POST", f"/processes/{shell}/stdin", body=line.encode()) as answer,
    ):
        await answer.read(1000)


async def _count(bench: Bench, machine: Machine) -> int:
    """Where the counter is, once it has counted."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            _, said = await bench.sh(machine, "cat /dev/shm/count")
            if said.strip():
                return int(said)


async def _save(bench: Bench, machine: Machine) -> None:
    await bench.engine.pause(machine)
    await bench.engine.save(machine)
    await bench.engine.halt(machine.id)


@contextlib.asynccontextmanager
async def _saved_machine(bench: Bench) -> AsyncIterator[Machine]:
    """A machine that is only on disk, with a file and a word in its memory."""
    async with bench.machine() as machine:
        assert await bench.sh(machine, "echo here > file; echo word > /dev/shm/word") == (0, "")
        await _save(bench, machine)
        yield machine


async def _loads(bench: Bench, machine: Machine) -> Machine:
    """The saved machine loads, and is the one that was saved."""
    again = await bench.engine.load(machine.id, machine.slot)
    await bench.engine.resume(again)
    assert await bench.sh(again, "cat file /dev/shm/word") == (0, "here\nword\n")
    return again


@ON_QEMU
async def test_a_machine_goes_on_where_it_was_saved_also_the_second_time_and_in_another_slot(bench: Bench) -> None:
    other = bench.slots.take_nowait()
    async with bench.machine() as first:
        machine = first
        await _start(bench, machine, ["/bin/sh", "-c", COUNT])
        shell = await _start(bench, machine, ["/bin/sh"], stdin=True)
        await _type(bench, machine, shell, "WORD=kept\n")
        _, boot_id = await bench.sh(machine, f"echo here > file; {BOOT_ID}")
        counted = await _count(bench, machine)
        for slot in (other, first.slot):
            await _save(bench, machine)
            assert processes_of(bench.folder) == {}
            machine = await bench.engine.load(machine.id, slot)
            await bench.engine.resume(machine)
            await bench.engine.discard(machine.id)
            assert await bench.sh(machine, f"cat file; {BOOT_ID}") == (0, f"here\n{boot_id}")
            said = f"said{slot.number}"
            await _type(bench, machine, shell, f"echo $WORD > {said}; echo done >> {said}\n")
            await bench.sh(machine, f"until grep -q done {said}; do sleep 0.05; done")
            assert await bench.sh(machine, f"head -n 1 {said}") == (0, "kept\n")
            before, counted = counted, await _count(bench, machine)
            assert counted >= before
        await bench.sh(machine, f"until [ $(cat /dev/shm/count || echo 0) -gt {counted} ]; do sleep 0.05; done")
    await bench.slots.give_back(other)


@ON_QEMU
async def test_only_what_was_changed_is_written_and_progress_is_told(bench: Bench) -> None:
    told: list[tuple[int, int]] = []
    async with bench.machine() as machine:
        await bench.sh(machine, "head -c 20000000 /dev/urandom > /dev/shm/noise; head -c 9000000 /dev/zero > zeros")
        await bench.engine.pause(machine)
        size = await bench.engine.save(machine, lambda done, total: told.append((done, total)))
        assert size == sum(path.stat().st_size for path in (machine.folder / "saved").iterdir())
        assert 20_000_000 < size < 100_000_000
        await asyncio.sleep(0)
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1] >= 20_000_000
        assert not machine.ended.done()
        # It may also simply go on.
        await bench.engine.resume(machine)
        assert await bench.sh(machine, "wc -c < zeros") == (0, "9000000\n")


@ON_QEMU
async def test_a_saved_machine_needs_neither_its_snapshot_nor_its_image_nor_its_daemon(bench: Bench) -> None:
    snapshot = await bench.snapshot()
    hidden = snapshot.folder.with_name("hidden")
    async with _saved_machine(bench) as machine:
        bench.engine.close()
        bench.engine = bench.open_engine()
        snapshot.folder.rename(hidden)
        try:
            assert not (machine.folder / "root").is_symlink()
            await _loads(bench, machine)
        finally:
            hidden.rename(snapshot.folder)


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def _cut(path: Path, count: int) -> None:
    os.truncate(path, path.stat().st_size - count)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "magic": lambda folder: _flip(folder / "pages", 0),
    "memory size": lambda folder: _flip(folder / "pages", 11),
    "page": lambda folder: _flip(folder / "pages", pages.DATA_AT + 12345),
    "table": lambda folder: _flip(folder / "pages", -3),
    "cut table": lambda folder: _cut(folder / "pages", 1),
    "cut pages": lambda folder: _cut(folder / "pages", 1 << 20),
    "no pages": lambda folder: os.truncate(folder / "pages", 0),
    "pages missing": lambda folder: (folder / "pages").unlink(),
    "devices": lambda folder: _flip(folder / "devices", 0),
    "cut devices": lambda folder: _cut(folder / "devices", 100),
    "devices missing": lambda folder: (folder / "devices").unlink(),
    "drive facts": lambda folder: (folder / "drive.json").write_bytes(b"{"),
}


@ON_QEMU
async def test_a_damaged_state_is_refused_with_the_reason_and_leaves_no_process(bench: Bench) -> None:
    async with _saved_machine(bench) as machine:
        state, good = machine.folder / "saved", machine.folder / "good"
        shutil.copytree(state, good)
        for name, damage in DAMAGE.items():
            damage(state)
            with pytest.raises(EngineError, match=r"failed: ."):
                await bench.engine.load(machine.id, machine.slot)
            assert processes_of(bench.folder) == {}, name
            shutil.rmtree(state)
            shutil.copytree(good, state)
        await _loads(bench, machine)


@ON_QEMU
async def test_a_save_cancelled_at_any_wait_leaves_nothing_and_the_machine_goes_on(bench: Bench) -> None:
    async with bench.machine() as machine:
        for place in places():
            await bench.engine.pause(machine)
            size = await cancelled_at(place, bench.engine.save(machine))
            left = {path.name for path in machine.folder.iterdir()} & {"saved", "saved.tmp"}
            assert left <= {"saved"}  # a cancellation may come too late
            await bench.engine.resume(machine)
            assert await bench.sh(machine, "echo here > file; cat file") == (0, "here\n")
            if size is not None:
                break
            await bench.engine.discard(machine.id)
        assert place > 3


@ON_QEMU
async def test_a_load_cancelled_at_any_wait_leaves_no_process_and_what_was_saved(bench: Bench) -> None:
    async with _saved_machine(bench) as machine:
        for place in places():
            loaded = await cancelled_at(place, bench.engine.load(machine.id, machine.slot))
            if loaded is not None:
                break
            assert processes_of(bench.folder) == {}, f"cancelled at wait {place}"
            assert bench.engine.found() == [Found(machine.id, None, is_saved=True)]
        assert place > 3
        assert loaded is not None
        await bench.engine.resume(loaded)
        assert await bench.sh(loaded, "cat file /dev/shm/word") == (0, "here\nword\n")


@ON_QEMU
async def test_until_it_is_resumed_a_loaded_machine_writes_nothing_and_can_be_loaded_again(bench: Bench) -> None:
    async with bench.machine() as machine:
        # Much is under way to the disk when it is stopped.
        await bench.sh(machine, "echo here > file; echo word > /dev/shm/word")
        await _start(
            bench, machine, ["/bin/sh", "-c", "while :; do dd if=/dev/urandom of=busy bs=64k count=50; sync; done"]
        )
        await asyncio.sleep(0.5)
        await _save(bench, machine)
        drive = (machine.folder / "drive").read_bytes()
        loaded = await bench.engine.load(machine.id, machine.slot)
        await asyncio.sleep(0.3)
        assert (machine.folder / "drive").read_bytes() == drive
        os.kill(loaded.pid, 9)
        await loaded.ended
        again = await _loads(bench, machine)
        await bench.engine.pause(again)


@ON_QEMU
async def test_a_state_whose_drive_went_on_without_it_is_refused(bench: Bench) -> None:
    async with _saved_machine(bench) as machine:
        again = await _loads(bench, machine)
        await bench.sh(again, "echo more > more; sync")
        os.kill(again.pid, 9)
        await again.ended
        with pytest.raises(EngineError, match="written to after it was saved"):
            await bench.engine.load(machine.id, machine.slot)


@ON_QEMU
async def test_what_makes_no_sense_is_refused_and_changes_nothing(bench: Bench) -> None:
    async with bench.machine() as machine:
        with pytest.raises(EngineError, match="pause it first"):
            await bench.engine.save(machine)
        with pytest.raises(EngineError, match="not saved"):
            await bench.engine.halt(machine.id)
        with pytest.raises(EngineError, match="it runs already"):
            await bench.engine.load(machine.id, machine.slot)
        with pytest.raises(EngineError, match="not saved on this host"):
            await bench.engine.load(new_id(), machine.slot)
        assert await bench.sh(machine, "echo here") == (0, "here\n")
        assert not (machine.folder / "saved.tmp").exists()


@ON_QEMU
async def test_a_saved_machine_whose_process_nobody_adopted_is_not_loaded_beside_it(bench: Bench) -> None:
    async with bench.machine() as machine:
        await bench.sh(machine, "echo here > file")
        await bench.engine.pause(machine)
        await bench.engine.save(machine)
        bench.engine.close()
        bench.engine = bench.open_engine()
        with pytest.raises(EngineError, match="nobody has adopted"):
            await bench.engine.load(machine.id, machine.slot)
        adopted = await bench.engine.adopt(machine.id, machine.slot)
        await bench.engine.resume(adopted)
        assert await bench.sh(adopted, "cat file") == (0, "here\n")


@ON_QEMU
@pytest.mark.parametrize(
    ("attribute", "words"), [("qemu", "QEMU"), ("accel", "accelerator"), ("layout", "hardware layout")]
)
async def test_what_another_qemu_saved_is_refused_and_stays(bench: Bench, attribute: str, words: str) -> None:
    async with _saved_machine(bench) as machine:
        path = machine.folder / "machine.json"
        before = path.read_text()
        facts = saved.made.read(machine.folder)
        path.write_text(before.replace(getattr(facts, attribute), "another"))
        with pytest.raises(EngineError, match=words):
            await bench.engine.load(machine.id, machine.slot)
        assert bench.engine.found() == [Found(machine.id, None, is_saved=True)]
        path.write_text(before)
        await _loads(bench, machine)


@ON_QEMU
async def test_a_machine_that_dies_or_is_destroyed_while_it_is_saved_is_an_engine_error(bench: Bench) -> None:
    for end in (lambda machine: os.kill(machine.pid, 9), lambda machine: bench.engine.destroy(machine.id)):
        async with bench.machine() as machine:
            await bench.sh(machine, "head -c 30000000 /dev/urandom > /dev/shm/noise")
            await bench.engine.pause(machine)
            saving = asyncio.create_task(bench.engine.save(machine))
            while not (machine.folder / "saved.tmp/pages").exists() and not saving.done():
                await asyncio.sleep(0)
            if (ending := end(machine)) is not None:
                await ending
            await asyncio.wait({saving})
            if saving.exception() is not None:  # else the end came too late
                assert isinstance(saving.exception(), EngineError)
                assert not list(machine.folder.glob("saved*"))


@ON_QEMU
async def test_destroying_a_saved_machine_removes_every_trace(bench: Bench) -> None:
    async with _saved_machine(bench) as machine:
        await bench.engine.destroy(machine.id)
        assert await bench.traces() == []
        with pytest.raises(EngineError):
            await bench.engine.load(machine.id, machine.slot)


class Limits:
    """A limit that remembers, and breaks when it is told to."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.is_broken = False

    def begin(self, machine_id: str, pid: int, shape: Shape) -> None:
        assert Path(f"/proc/{pid}").exists()
        assert shape.memory_mb > 0
        self.told.append(("begin", machine_id))
        if self.is_broken:
            raise OSError("no such cgroup")

    def end(self, machine_id: str) -> None:
        self.told.append(("end", machine_id))


@pytest.fixture
def limits(bench: Bench) -> Iterator[Limits]:
    limits = Limits()
    bench.engine.close()
    bench.engine = bench.open_engine(limit=limits)
    return limits


@ON_QEMU
async def test_each_process_is_limited_from_its_start_to_its_end(bench: Bench, limits: Limits) -> None:
    async with _saved_machine(bench) as machine:
        of_it = [what for what, whose in limits.told if whose == machine.id]
        assert of_it == ["begin", "end"]
        await _loads(bench, machine)
        await bench.engine.destroy(machine.id)
        of_it = [what for what, whose in limits.told if whose == machine.id]
        assert of_it[:3] == ["begin", "end", "begin"]
        assert set(of_it[3:]) == {"end"}


@ON_QEMU
async def test_a_limit_that_fails_undoes_the_start(bench: Bench, limits: Limits) -> None:
    snapshot = await bench.snapshot()
    async with _saved_machine(bench) as machine:
        limits.is_broken = True
        with pytest.raises(EngineError, match="no such cgroup"):
            await bench.engine.load(machine.id, machine.slot)
        assert processes_of(bench.folder) == {}
        with pytest.raises(EngineError, match="no such cgroup"):
            await bench.engine.restore(snapshot, machine.slot, new_id())
        assert bench.engine.found() == [Found(machine.id, None, is_saved=True)]
        limits.is_broken = False
        await _loads(bench, machine)


@pytest.mark.parametrize("engine_name", [LOCAL, PLAIN], indirect=True)
async def test_an_engine_that_cannot_save_says_so(bench: Bench) -> None:
    assert not bench.engine.can_save
    async with bench.machine() as machine:
        for refused in (
            bench.engine.save(machine),
            bench.engine.halt(machine.id),
            bench.engine.load(machine.id, machine.slot),
        ):
            with pytest.raises(EngineError, match="cannot save"):
                await refused
        await bench.engine.discard(machine.id)
        assert await bench.sh(machine, "echo here") == (0, "here\n")
