"""The warden, as a process, with real processes to kill."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from lease_hosts import MACHINE, is_dead, until

from poold import processes
from poold.lease.clock import boot_id, boottime_ns
from poold.lease.guard import RECORD_BYTES, Guard, Targets, Until
from poold.lease.killing import find, kill, kill_process
from poold.lease.wardens import dismiss, ensure

S = 1_000_000_000


class Scene:
    """A host's folder, a process that stands for poold, and as many machines as one likes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.guard = Guard(folder / "run")
        self.guard.prepare(Targets(marks=(("--mark", f"{folder}/vms/"),), arguments=(("--proxy", str(folder)),)))
        self.started: list[subprocess.Popen[bytes]] = []
        self.poold = self.run()
        self.wardens: set[int] = set()

    def run(self, *words: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen([sys.executable, "-c", MACHINE, *words], start_new_session=True)
        self.started.append(process)
        return process

    def machine(self, name: str = "vm-1") -> "subprocess.Popen[bytes]":
        return self.run("--mark", f"{self.folder}/vms/{name}")

    def hold(self, seconds: float) -> None:
        until_ns = boottime_ns() + int(seconds * S)
        pid = self.poold.pid
        self.guard.write(Until(boot_id(), 7, until_ns, until_ns, pid, processes.started(pid)))

    async def warden(self) -> int:
        pid = await ensure(self.guard)
        self.wardens.add(pid)
        return pid

    def end(self) -> None:
        self.guard.close()
        for process in self.started:
            process.kill()
            process.wait()
        for pid in self.wardens:
            kill_process(pid, processes.started(pid))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    try:
        yield made
    finally:
        made.end()


def runs(pid: int) -> bool:
    return processes.started(pid) != "0"


async def test_at_the_deadline_it_kills_machines_proxies_and_a_poold_that_is_stopped(scene: Scene) -> None:
    machines = [scene.machine(f"vm-{number}") for number in range(3)] + [scene.run("--proxy", str(scene.folder))]
    others = [scene.run("--mark", f"{scene.folder}/vms-of-another/vm-1"), scene.run(f"{scene.folder}/vms/vm-1")]
    os.kill(scene.poold.pid, signal.SIGSTOP)
    scene.hold(2.0)
    warden = await scene.warden()
    assert not any(map(is_dead, machines))
    await until(lambda: all(map(is_dead, [*machines, scene.poold])))
    await until(scene.guard.killed.exists)
    told = orjson.loads(scene.guard.killed.read_bytes())
    assert (told["epoch"], told["poold"]) == (7, scene.poold.pid)
    assert set(told["machines"]) == {machine.pid for machine in machines}
    assert told["late_ms"] >= 0
    await until(lambda: not runs(warden))
    assert not any(map(is_dead, others))


async def test_as_long_as_the_lease_is_renewed_nothing_is_killed(scene: Scene) -> None:
    machine = scene.machine()
    scene.hold(30.0)
    warden = await scene.warden()
    for _ in range(3):
        scene.hold(30.0)
        assert await scene.warden() == warden
    assert not is_dead(machine)


async def test_it_ends_when_there_is_nothing_to_be_guarded_and_poold_is_gone(scene: Scene) -> None:
    machine = scene.machine()
    scene.hold(30.0)
    warden = await scene.warden()
    found = scene.guard.read()
    assert found is not None
    scene.guard.write(found.over())
    scene.poold.kill()
    scene.poold.wait()
    await until(lambda: not runs(warden))
    assert not is_dead(machine)


async def test_a_warden_that_is_dismissed_leaves_nothing(scene: Scene) -> None:
    scene.hold(30.0)
    warden = await scene.warden()
    dismiss(scene.guard)
    await until(lambda: not runs(warden))
    assert not scene.guard.folder.exists()
    dismiss(scene.guard)


async def test_there_is_one_and_another_after_it_was_killed(scene: Scene) -> None:
    scene.hold(60.0)
    first = await scene.warden()
    second = subprocess.run(
        [sys.executable, "-m", "poold.lease.warden", str(scene.guard.folder)], check=True, timeout=60
    )
    assert second.returncode == 0
    assert await scene.warden() == first
    os.kill(first, signal.SIGKILL)
    await until(lambda: not runs(first))
    assert await scene.warden() != first


async def test_it_outlives_who_stops_poold_with_all_that_it_started(scene: Scene) -> None:
    scene.hold(60.0)
    warden = await scene.warden()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(warden, number)
    assert await scene.warden() == warden


async def test_a_machine_that_begins_when_all_are_killed_is_killed_as_well(scene: Scene) -> None:
    scene.hold(0.1)
    warden = await scene.warden()
    await until(scene.guard.killed.exists)
    late = scene.machine()
    await until(lambda: is_dead(late))
    await until(lambda: not runs(warden))


async def test_it_does_its_work_when_its_folder_is_gone(scene: Scene) -> None:
    machine = scene.machine()
    scene.hold(3.0)
    await scene.warden()
    for path in scene.guard.folder.iterdir():
        path.unlink()
    await until(lambda: is_dead(machine))


async def test_the_kernel_does_not_choose_it_when_memory_is_short(scene: Scene) -> None:
    tried = subprocess.run(["sh", "-c", "echo -1000 >/proc/self/oom_score_adj"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("we may not say so here")
    scene.hold(60.0)
    warden = await scene.warden()
    assert Path(f"/proc/{warden}/oom_score_adj").read_text().strip() == "-1000"


def test_half_a_record_is_none_and_what_was_written_is_read(tmp_path: Path) -> None:
    guard = Guard(tmp_path)
    assert guard.read() is None
    wanted = Until(boot_id(), 3, 4, 5, 6, "7")
    with guard.opened():
        guard.write(wanted)
        assert guard.read() == wanted
        data = wanted.encode()
        assert len(data) == RECORD_BYTES
        for cut in (0, 1, 100, RECORD_BYTES - 1):
            assert Until.decode(data[:cut]) is None
        for at in range(0, RECORD_BYTES, 7):
            assert Until.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None
        guard.write(wanted.over())
        assert guard.read() == Until(boot_id(), pid=6, started="7")


def test_a_kill_finds_nobody_else_and_knows_when_it_is_done(scene: Scene) -> None:
    machine, other = scene.machine(), scene.run("--mark", "elsewhere")
    targets = scene.guard.targets()
    assert find(targets) == {machine.pid}
    assert kill(targets) == [machine.pid]
    assert find(targets) == set()
    assert not Path(f"/proc/{machine.pid}").exists()  # it was our child: it is waited for, too
    machine.wait()
    assert not is_dead(other)


def test_a_process_that_began_at_another_time_is_another(scene: Scene) -> None:
    assert not kill_process(scene.poold.pid, "1")
    assert not is_dead(scene.poold)
    assert kill_process(scene.poold.pid, processes.started(scene.poold.pid))
    assert scene.poold.wait() == -signal.SIGKILL
