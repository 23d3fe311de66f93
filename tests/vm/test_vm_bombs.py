"""Programs that take all that they can get: each costs its own sandbox only, and costs that no more than a refusal."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import Api, Sandbox, until
from tests.vm.conftest import SMALL_DISK, OpenOwn

GROWTH_MB = 20  # of poold, whatever its sandboxes do
EMULATOR_MB = 224  # of a machine besides its RAM, at most
FLOOD_BYTES = 10_000_000
LOG_BYTES = 1 << 16
# All processes of a user at once: of those that are killed one by one, the others make more.
KILL_ALL = "import os, signal; os.setuid(1000); os.kill(-1, signal.SIGKILL)"


@pytest.fixture(autouse=True)
def _poold_stays_small(host: Host) -> Iterator[None]:
    traces.forget_peak(host.process.pid)
    before = host.rss_mb()
    yield
    assert traces.peak_mb(host.process.pid) - before < GROWTH_MB


@pytest.fixture
def neighbour(shared: Sandbox) -> Iterator[Sandbox]:
    """A sandbox that was there before. It is the same machine afterwards, and works."""
    booted = "cat /proc/sys/kernel/random/boot_id"
    before = shared.sh(booted)
    yield shared
    assert shared.sh(booted) == before
    assert is_well(shared)


@contextlib.contextmanager
def doomed(host: Host, api: Api, **shape: int) -> Iterator[Sandbox]:
    """A sandbox to be harmed. After the block nothing of its machine is left on the host."""
    with api.sandbox(**shape) as sandbox:
        machine = traces.ledger_machine(host.state, sandbox.id)
        yield sandbox
        assert sandbox.view["state"] == "running"
    until(lambda: machine not in traces.machines(host.state) and machine not in traces.folders(host.state))


def is_well(sandbox: Sandbox) -> bool:
    """It answers, and a command in it comes to the right result."""
    return sandbox.sh("echo $((6 * 7))") == "42" and answers(sandbox)


def answers(sandbox: Sandbox) -> bool:
    reply = sandbox.api.call("GET", f"{sandbox.path}/health")
    return reply.status == 200 and reply.json["id"] == sandbox.id


def processes(sandbox: Sandbox) -> int:
    """How many processes the ordinary user has, as root counts them."""
    done = sandbox.run(["ps", "-u", "user", "-o", "pid="], user="root")
    return len(done["stdout"].split())


def own_folder(host: Host, sandbox: Sandbox) -> Path:
    return host.state / "qemu" / "machines" / traces.ledger_machine(host.state, sandbox.id)


def test_a_fork_bomb_is_refused_more_processes_and_its_supervisor_answers_all_the_while(
    host: Host, api: Api, neighbour: Sandbox
) -> None:
    with doomed(host, api) as sandbox:
        limit = int(sandbox.sh("ulimit -Hu"))
        assert sandbox.sh("cat /proc/sys/kernel/sched_autogroup_enabled") == "1"
        sandbox.run("bomb() { bomb | bomb & }; bomb")
        until(lambda: processes(sandbox) > limit // 2)
        assert answers(sandbox)
        assert is_well(neighbour)
        assert processes(sandbox) <= limit
        sandbox.run(["python3", "-c", KILL_ALL], user="root")
        until(lambda: processes(sandbox) == 0)
        assert is_well(sandbox)


def test_a_memory_bomb_is_killed_alone_and_files_in_memory_are_refused_in_time(
    host: Host, api: Api, neighbour: Sandbox
) -> None:
    with doomed(host, api) as sandbox:
        sandbox.sh("sleep 1000 > /dev/null 2>&1 & echo $! > sleeper")
        done = sandbox.run(["python3", "-c", "held = []\nwhile True: held.append(bytearray(4 << 20))"])
        assert (done["exit_code"], done["signal"]) == (None, "SIGKILL")
        assert is_well(sandbox)
        assert sandbox.sh("kill -0 $(cat sleeper) && cat /proc/1/oom_score_adj") == "-1000"
        full = sandbox.run(["dd", "if=/dev/zero", "of=/dev/shm/fill", "bs=1M"])
        assert "No space left on device" in full["stderr"]
        assert is_well(sandbox)
        assert is_well(neighbour)
        machine = traces.machines(host.state)[own_folder(host, sandbox).name]
        assert traces.peak_mb(machine) < sandbox.created["memory_mb"] + EMULATOR_MB


def test_the_first_machine_to_use_all_of_its_memory_is_not_killed_for_it(host: Host, open_own: OpenOwn) -> None:
    """What it is restored from grows with it, at its expense: a host of its own, where no machine was first before."""
    with open_own() as own, doomed(own, Api(own)) as sandbox:
        sandbox.sh("dd if=/dev/zero of=fill bs=1M count=600 2> /dev/null; cat fill > /dev/null; rm fill")
        # Every process has its code elsewhere, so it is translated anew.
        for _ in range(4):
            sandbox.sh("for i in $(seq 10); do python3 -c 'import json, http.client, decimal'; done")
        done = sandbox.run(["python3", "-c", "held = []\nwhile True: held.append(bytearray(4 << 20))"])
        assert done["signal"] == "SIGKILL"
        assert is_well(sandbox)


def test_a_full_disk_refuses_writes_and_nothing_else(host: Host, api: Api, neighbour: Sandbox) -> None:
    with doomed(host, api, **SMALL_DISK) as sandbox:
        for folder in ("/workspace", "/tmp"):
            done = sandbox.run(["dd", "if=/dev/zero", f"of={folder}/fill", "bs=1M"])
            assert done["exit_code"] == 1
            assert "No space left on device" in done["stderr"]
        assert sandbox.put("/workspace/more", b"x" * 100_000).refusal == (507, "disk_full")
        assert is_well(sandbox)
        assert is_well(neighbour)
        files = [path.stat() for path in own_folder(host, sandbox).iterdir()]
        used = sum(file.st_blocks * 512 for file in files if file.st_nlink == 1)  # others are shared by all machines
        assert used <= (SMALL_DISK["disk_mb"] + 1) << 20
        sandbox.sh("rm /workspace/fill && echo again > /workspace/more && sync")


def test_output_that_nobody_reads_is_kept_nowhere(host: Host, api: Api, neighbour: Sandbox) -> None:
    def supervisor_kb() -> int:
        return int(sandbox.sh("awk '/VmRSS/ {print $2}' /proc/1/status"))

    def written() -> int:
        return int(sandbox.sh("awk '/wchar/ {print $2}' /proc/$(cat flood)/io"))

    with doomed(host, api) as sandbox:
        with sandbox.follow("echo $$ > flood; exec yes $(seq 100)") as events:
            for _ in range(3):
                next(events)
        before = supervisor_kb()
        until(lambda: written() > FLOOD_BYTES)
        assert supervisor_kb() - before < 4096
        assert is_well(neighbour)
        sandbox.sh("kill $(cat flood)")
        assert is_well(sandbox)


def test_a_machine_that_floods_its_console_fills_no_file_of_the_host(host: Host, api: Api, neighbour: Sandbox) -> None:
    with doomed(host, api) as sandbox:
        said = "yes 'all work and no play' | head -c 1000000"
        sandbox.run(f"{said} | sudo tee /dev/ttyS0 > /dev/null", timeout_sec=60)
        sandbox.run(f"{said} | head -n 2000 | sudo tee /dev/kmsg > /dev/null", timeout_sec=60)
        assert is_well(sandbox)
        assert is_well(neighbour)
        files = [path for path in own_folder(host, sandbox).iterdir() if path.suffix == ".log"]
        assert files
        assert sum(path.stat().st_size for path in files) < LOG_BYTES
