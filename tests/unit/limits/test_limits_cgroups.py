"""Control groups of this very host: real processes, real limits, enforced by the real kernel.

What the kernel does is what counts, so nothing here is imitated. The version that this host does not have is in
`test_limits_cgroups_files.py`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract.models import Shape
from poold.cgroups import Cgroups, Limits, groups, open_cgroups
from poold.cgroups.device import disk_of
from poold.errors import HostFault

ROOT = Path("/sys/fs/cgroup")
SHAPE = Shape("minimal", 1, 256, 2048)
VM = "vm-" + "a" * 16
OTHER = "vm-" + "b" * 16
SMALL = Limits(vcpus=0.2, memory_mb=64, pids=8, io_bytes_per_s=1 << 20)
Start = Callable[[str], "subprocess.Popen[str]"]


def name() -> str:
    return f"warren-test-{os.getpid()}"


def folders() -> list[Path]:
    """Every group of ours on this host, found by looking where the code under test does not."""
    return [Path(folder) / one for folder, below, _ in os.walk(ROOT) for one in below if one == name()]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert folders() == []


@contextlib.contextmanager
def opened(limits: Limits = SMALL, **options: Path) -> Iterator[Cgroups]:
    """Cgroups of the test's own; after it all of its groups are gone, whatever the test did."""
    cgroups = open_cgroups(name=name(), limits=lambda _shape: limits, **options)
    if cgroups is None:
        pytest.skip("this host lets us make no groups")
    try:
        yield cgroups
    finally:
        for machine_id in cgroups.found():
            cgroups.end(machine_id)
        cgroups.close()


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    with opened() as cgroups:
        yield cgroups


@pytest.fixture
def start(cgroups: Cgroups) -> Iterator[Start]:
    """Starts a Python program that waits for a line before it does anything. All are gone before the groups go."""
    with contextlib.ExitStack() as ends:

        def start(program: str) -> "subprocess.Popen[str]":
            argv = [sys.executable, "-c", f"input()\n{program}"]
            process = ends.enter_context(
                subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
            )
            ends.callback(_kill_group, process.pid)
            return process

        yield start


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def go(process: "subprocess.Popen[str]") -> str:
    """Let it do what it waits to do: what it says until its end."""
    said, _ = process.communicate("\n", timeout=60)
    return said


def test_a_process_is_in_its_group_with_all_its_threads(cgroups: Cgroups) -> None:
    program = "import threading, time; threading.Thread(target=time.sleep, args=(99,)).start(); print(1, flush=True)"
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        cgroups.begin(VM, process.pid, SHAPE)
        threads = list(Path(f"/proc/{process.pid}/task").iterdir())
        assert len(threads) == 2
        assert all(f"/{name()}/{VM}" in (thread / "cgroup").read_text() for thread in threads)
        assert f"/{name()}/" not in Path("/proc/self/cgroup").read_text()
        usage = cgroups.usage(VM)
        assert usage is not None
        assert (usage.pids, usage.oom_kills) == (2, 0)
        process.kill()
    cgroups.end(VM)


def test_the_page_cache_of_a_machines_files_and_what_it_shares_is_not_its_memory(
    cgroups: Cgroups, start: Start, tmp_path: Path
) -> None:
    program = (
        f"import mmap, os; open({str(tmp_path / 'drive')!r}, 'wb').write(bytes(24 << 20))\n"
        "shared = mmap.mmap(-1, 8 << 20); shared.write(b'x' * len(shared))\n"
        "own = b'x' * (8 << 20); print(1, flush=True); input()"
    )
    process = start(program)
    cgroups.begin(VM, process.pid, SHAPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "1\n"
    usage = cgroups.usage(VM)
    assert usage is not None
    assert 8 << 20 <= usage.memory_bytes < 16 << 20


def test_a_process_that_takes_too_much_memory_is_killed_and_that_is_counted(cgroups: Cgroups, start: Start) -> None:
    process = start("held = bytearray(200 << 20)")
    neighbour = start("held = bytearray(40 << 20); print(len(held))")
    cgroups.begin(VM, process.pid, SHAPE)
    cgroups.begin(OTHER, neighbour.pid, SHAPE)
    go(process)
    assert process.returncode == -signal.SIGKILL
    usage, others = cgroups.usage(VM), cgroups.usage(OTHER)
    assert usage is not None
    assert others is not None
    assert (usage.oom_kills, others.oom_kills) == (1, 0)
    assert go(neighbour) == f"{40 << 20}\n"


def test_a_process_cannot_have_more_threads_than_its_limit(cgroups: Cgroups, start: Start) -> None:
    program = (
        "import threading, time\n"
        "started = 0\n"
        "try:\n"
        "    while started < 100:\n"
        "        threading.Thread(target=time.sleep, args=(1,), daemon=True).start(); started += 1\n"
        "except RuntimeError:\n"
        "    print(started)\n"
    )
    process = start(program)
    cgroups.begin(VM, process.pid, SHAPE)
    assert go(process) == f"{SMALL.pids - 1}\n"


def test_a_process_gets_its_share_of_the_processors_and_no_more(cgroups: Cgroups, start: Start) -> None:
    process = start("import time; end = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass")
    cgroups.begin(VM, process.pid, SHAPE)
    began, before = time.monotonic(), cgroups.usage(VM)
    go(process)
    took, usage = time.monotonic() - began, cgroups.usage(VM)
    assert usage is not None
    assert before is not None
    # However busy the host is, it can only be less. One more period may have begun.
    assert 0 < usage.cpu_s - before.cpu_s <= SMALL.vcpus * (took + 0.2)


def test_the_disk_of_a_folder_is_throttled(start: Start, tmp_path: Path) -> None:
    with opened(io_device=tmp_path) as cgroups:
        process = start("")
        cgroups.begin(VM, process.pid, SHAPE)
        files = [
            home / VM / file
            for home in folders()
            for file in ("blkio.throttle.read_bps_device", "io.max")
            if (home / VM / file).exists()
        ]
        told = [file.read_text() for file in files]
        go(process)
    assert told or disk_of(tmp_path) is None
    assert all(str(SMALL.io_bytes_per_s) in lines for lines in told)


def test_a_folder_that_is_on_no_disk_is_not_throttled_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with opened(io_device=Path("/proc")):
        assert [record.message for record in caplog.records] == ["disk throughput is not limited"]


def test_ending_is_possible_twice_and_without_a_beginning(cgroups: Cgroups, start: Start) -> None:
    cgroups.end(VM)
    process = start("")
    cgroups.begin(VM, process.pid, SHAPE)
    assert cgroups.found() == {VM}
    go(process)
    cgroups.end(VM)
    cgroups.end(VM)
    assert cgroups.found() == frozenset()
    assert cgroups.usage(VM) is None


def test_a_group_whose_process_is_just_dying_is_waited_for(cgroups: Cgroups, start: Start) -> None:
    process = start("held = bytearray(30 << 20)\ninput()")
    cgroups.begin(VM, process.pid, SHAPE)
    process.kill()
    cgroups.end(VM)  # without having waited for its end
    assert cgroups.found() == frozenset()


def test_a_group_that_is_in_use_is_not_removed_and_says_by_whom(
    cgroups: Cgroups, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "REMOVE_LIMIT_S", 0.1)
    process = start("")
    cgroups.begin(VM, process.pid, SHAPE)
    with pytest.raises(HostFault, match=f"process {process.pid} is still in it"):
        cgroups.end(VM)
    assert VM in cgroups.found()
    go(process)


def test_a_process_that_is_gone_gets_no_group(cgroups: Cgroups) -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    with pytest.raises(HostFault, match=r"cgroup\.procs.*the process is gone"):
        cgroups.begin(VM, process.pid, SHAPE)
    assert cgroups.found() == frozenset()


def test_a_second_beginning_is_refused_and_leaves_the_first_alone(cgroups: Cgroups, start: Start) -> None:
    first, second = start(""), start("")
    cgroups.begin(VM, first.pid, SHAPE)
    with pytest.raises(HostFault, match=VM):
        cgroups.begin(VM, second.pid, SHAPE)
    usage = cgroups.usage(VM)
    assert usage is not None
    assert usage.pids == 1
    assert f"/{VM}" not in Path(f"/proc/{second.pid}/cgroup").read_text()


@pytest.mark.parametrize("step", range(12))
def test_a_failure_at_any_step_leaves_no_group_and_the_process_where_it_was(
    cgroups: Cgroups, start: Start, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    process = start("print('well')")
    before = Path(f"/proc/{process.pid}/cgroup").read_text()
    steps = iter(range(1000))
    write = groups._write

    def failing(file: Path, line: str) -> None:
        if next(steps) == step:
            raise HostFault("writing", str(file), hint="made to fail")
        write(file, line)

    monkeypatch.setattr(groups, "_write", failing)
    with contextlib.suppress(HostFault):
        cgroups.begin(VM, process.pid, SHAPE)
        assert next(steps) <= step  # there are not so many steps on this host
        go(process)
        return
    assert cgroups.found() == frozenset()
    assert Path(f"/proc/{process.pid}/cgroup").read_text() == before
    assert go(process) == "well\n"


BAD = [
    "",
    ".",
    "..",
    "../x",
    "vm-../aaaaaaaaaaaaa",
    "vm-" + "A" * 16,
    VM + "\n",
    VM + "/x",
    "build-",
    "build-../x",
    "build-.x",
    "sb-" + "a" * 16,
]


@pytest.mark.parametrize("machine_id", BAD)
def test_what_is_no_machines_id_is_refused_everywhere(cgroups: Cgroups, machine_id: str) -> None:
    for call in (cgroups.end, cgroups.usage, lambda machine: cgroups.begin(machine, os.getpid(), SHAPE)):
        with pytest.raises(HostFault, match="machine's id"):
            call(machine_id)


def test_machines_that_are_being_built_have_groups_too(cgroups: Cgroups, start: Start) -> None:
    cgroups.begin("build-minimal-0123456789abcdef", start("").pid, SHAPE)
    assert cgroups.found() == {"build-minimal-0123456789abcdef"}


@pytest.mark.parametrize("wrong", ["", "..", "a/b", "A", "1x", "x" * 65])
def test_a_name_that_leads_elsewhere_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="name"):
        open_cgroups(name=wrong)


def test_the_next_daemon_finds_the_groups_of_the_last_and_keeps_their_limits(cgroups: Cgroups, start: Start) -> None:
    process = start("print('well')")
    cgroups.begin(VM, process.pid, SHAPE)
    cgroups.close()  # machines go on running
    with opened() as following:
        assert following.found() == {VM}
        usage = following.usage(VM)
        assert usage is not None
        assert usage.pids == 1
        assert go(process) == "well\n"
        following.end(VM)
        assert following.found() == frozenset()


def test_groups_of_a_daemon_that_was_started_in_another_group_are_found() -> None:
    """Version 1: where groups are made depends on where poold is; where they are looked for does not."""
    if not (ROOT / "pids" / "cgroup.procs").exists():
        pytest.skip("this host has version 2, which has one place for them")
    elsewhere = ROOT / "pids" / f"{name()}-elsewhere"
    (elsewhere / name() / VM).mkdir(parents=True)
    try:
        with opened() as cgroups:
            assert cgroups.found() == {VM}
            cgroups.end(VM)
            assert cgroups.found() == frozenset()
        assert list(elsewhere.glob("warren*")) == []
    finally:
        elsewhere.rmdir()


def test_a_tree_of_version_2_without_controllers_of_use_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Many hosts with version 1 have one, for the sake of systemd."""
    unified = ROOT / "unified"
    if not (unified / "cgroup.controllers").exists():
        pytest.skip("this host has none")
    before = (unified / "cgroup.subtree_control").read_text()
    assert open_cgroups(unified, name=name()) is None
    assert len(caplog.records) == 5
    assert (unified / "cgroup.subtree_control").read_text() == before


def test_a_host_without_control_groups_runs_without_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert open_cgroups(tmp_path, name=name()) is None
    assert caplog.records[-1].message == "machines run without cgroup limits"
    assert "is it mounted" in vars(caplog.records[-1])["why"]
