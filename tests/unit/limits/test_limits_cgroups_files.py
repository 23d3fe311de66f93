"""Control groups in a folder that looks like a kernel's: for the version and the mounts that this host does not have.

Imitated, and no more than this: a group's files come with its folder and go with it, a group with processes is not
removed, and a process is in one group of a tree. That limits hold is shown by `test_limits_cgroups.py`, for the version
that the host has.
"""

import errno
import os
import shutil
from pathlib import Path, PosixPath
from typing import Any

import pytest

from contract.models import Shape
from poold.cgroups import Limits, Usage, groups, limits_of, open_cgroups
from poold.cgroups.device import disk_of
from poold.errors import HostFault
from poold.pool import OVERHEAD_MB

SHAPE = Shape("minimal", 2, 512, 2048)
VM = "vm-" + "a" * 16
V2_FILES = {
    "cgroup.procs": "", "cgroup.controllers": "", "cgroup.subtree_control": "",
    "cpu.max": "max 100000", "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
    "memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0", "memory.current": "9048576",
    "memory.stat": "anon 1048576\nfile 8000000\nkernel 9\nshmem 600000\ninactive_file 7000000\n",
    "memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 1\n",
    "pids.max": "max", "pids.current": "7", "io.max": "",
}  # fmt: skip
V1_FILES = {"cgroup.procs": "", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1", "cpuacct.usage": "1500000000"}


class Tree(PosixPath):
    """A path in a tree of groups. Everything that is derived from it is one, too."""

    files: dict[str, str] = V2_FILES

    def mkdir(self, *args: Any, **options: Any) -> None:
        super().mkdir(*args, **options)
        for file, content in self.files.items():
            if not (self / file).exists():
                (self / file).write_text(content)

    def rmdir(self) -> None:
        if (self / "cgroup.procs").exists() and (self / "cgroup.procs").read_text().strip():
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if any(path.is_dir() for path in self.iterdir()):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        shutil.rmtree(self)


class TreeV1(Tree):
    files = V1_FILES


def v2(tmp_path: Path, controllers: str = "cpuset cpu io memory pids", enabled: str = "") -> Tree:
    root = Tree(tmp_path / "cgroup")
    root.mkdir()
    (root / "cgroup.controllers").write_text(controllers)
    (root / "cgroup.subtree_control").write_text(enabled)
    return root


def test_version_2_gets_its_limits_in_one_group(tmp_path: Path) -> None:
    root = v2(tmp_path, enabled="cpu io memory pids")
    cgroups = open_cgroups(root, name="warren")
    assert cgroups is not None
    cgroups.begin(VM, 4711, SHAPE)
    group = root / "warren" / VM
    told = {file: (group / file).read_text() for file in V2_FILES if (group / file).read_text() != V2_FILES[file]}
    assert told == {
        "cgroup.procs": "4711",
        "cpu.max": "250000 100000",
        "memory.max": str((2 * 512 + 224) << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "98",
    }
    assert (root / "warren" / "cgroup.subtree_control").read_text() != ""
    assert cgroups.found() == {VM}
    assert cgroups.usage(VM) == Usage(cpu_s=2.5, memory_bytes=1 << 20, pids=7, oom_kills=2)


def test_version_2_groups_go_when_their_processes_have_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "REMOVE_LIMIT_S", 0.05)
    root = v2(tmp_path)
    cgroups = open_cgroups(root)
    assert cgroups is not None
    cgroups.begin(VM, 4711, SHAPE)
    with pytest.raises(HostFault, match="process 4711 is still in it"):
        cgroups.end(VM)
    (root / "warren" / VM / "cgroup.procs").write_text("")
    cgroups.close()
    assert cgroups.found() == {VM}
    cgroups.end(VM)
    cgroups.close()
    assert [path.name for path in root.iterdir() if path.is_dir()] == []


def test_controllers_of_version_2_are_enabled_on_the_way_down(tmp_path: Path) -> None:
    root = v2(tmp_path, enabled="cpu memory pids")
    assert open_cgroups(root) is not None
    assert (root / "cgroup.subtree_control").read_text() == "+io"


def test_a_missing_controller_is_said_once_and_the_others_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = v2(tmp_path, controllers="cpu memory", enabled="cpu memory")
    cgroups = open_cgroups(root)
    assert cgroups is not None
    assert [vars(record)["controller"] for record in caplog.records] == ["pids", "io"]
    cgroups.begin(VM, 4711, SHAPE)
    assert (root / "warren" / VM / "pids.max").read_text() == "max"
    assert (root / "warren" / VM / "memory.max").read_text() != "max"


def test_version_2_without_any_controller_is_none_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert open_cgroups(v2(tmp_path, controllers="")) is None
    assert caplog.records[-1].message == "machines run without cgroup limits"


def test_a_file_that_is_missing_only_on_old_kernels_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {file: content for file, content in V2_FILES.items() if file not in ("memory.oom.group", "memory.swap.max")}
    monkeypatch.setattr(Tree, "files", old)
    cgroups = open_cgroups(v2(tmp_path))
    assert cgroups is not None
    cgroups.begin(VM, 4711, SHAPE)
    cgroups_without = {file: content for file, content in old.items() if file != "pids.max"}
    monkeypatch.setattr(Tree, "files", cgroups_without)
    with pytest.raises(HostFault, match=r"pids\.max"):
        cgroups.begin("vm-" + "b" * 16, 4712, SHAPE)
    assert cgroups.found() == {VM}


def test_version_2_throttles_the_disk_of_a_folder(tmp_path: Path) -> None:
    if disk_of(tmp_path) is None:
        pytest.skip("the folder for temporary files is on no disk")
    root = v2(tmp_path)
    cgroups = open_cgroups(root, io_device=tmp_path)
    assert cgroups is not None
    assert (root / "warren" / "io.max").read_text() == f"{disk_of(tmp_path)} rbps=max wbps=max"
    cgroups.begin(VM, 4711, SHAPE)
    rate = limits_of(SHAPE).io_bytes_per_s
    assert (root / "warren" / VM / "io.max").read_text() == f"{disk_of(tmp_path)} rbps={rate} wbps={rate}"


def v1(tmp_path: Path) -> Tree:
    """Processor time and its count in one tree with two names, as many hosts have it."""
    root = TreeV1(tmp_path / "cgroup")
    Path(root).mkdir()
    (root / "cpu,cpuacct").mkdir()
    for link in ("cpu", "cpuacct"):
        (root / link).symlink_to("cpu,cpuacct")
    return root


@pytest.mark.parametrize("own", ["/", "/service/poold"])
def test_a_tree_with_two_controllers_has_one_group_below_our_own(tmp_path: Path, own: str) -> None:
    root = v1(tmp_path)
    (root / "cpu,cpuacct" / "service").mkdir()
    (root / "cpu,cpuacct" / "service" / "poold").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(f"3:cpu,cpuacct:{own}\n1:name=systemd:/x:y\n0::/\n")
    cgroups = open_cgroups(root, proc=tmp_path)
    assert cgroups is not None
    cgroups.begin(VM, 4711, SHAPE)
    group = root / "cpu,cpuacct" / own.lstrip("/") / "warren" / VM
    assert (group / "cpu.cfs_quota_us").read_text() == "250000"
    usage = cgroups.usage(VM)
    assert usage is not None
    assert usage.cpu_s == 1.5


def test_inside_a_container_the_path_of_our_group_is_not_to_be_seen(tmp_path: Path) -> None:
    root = v1(tmp_path)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("3:cpu,cpuacct:/docker/0123\n")
    cgroups = open_cgroups(root, proc=tmp_path)
    assert cgroups is not None
    assert (root / "cpu,cpuacct" / "warren").is_dir()


def test_a_read_only_tree_is_said_and_gives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = v2(tmp_path)

    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Tree, "mkdir", refuse)
    assert open_cgroups(root) is None
    assert [record.message for record in caplog.records] == ["no use of a cgroup controller"] * 4 + [
        "machines run without cgroup limits"
    ]
    assert "Read-only" in vars(caplog.records[0])["why"]


def test_a_tree_of_version_1_that_we_may_not_write_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = v1(tmp_path)
    (root / "pids").mkdir()
    make = TreeV1.mkdir

    def refuse(self: Tree, *args: Any, **options: Any) -> None:
        if "pids" in self.parts:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        make(self, *args, **options)

    monkeypatch.setattr(TreeV1, "mkdir", refuse)
    cgroups = open_cgroups(root)
    assert cgroups is not None
    assert [vars(record)["controller"] for record in caplog.records] == ["memory", "blkio", "pids"]
    cgroups.begin(VM, 4711, SHAPE)
    assert (root / "cpu" / "warren" / VM / "cgroup.procs").read_text() == "4711"


def test_a_partition_is_throttled_by_its_disk(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    disk, partition = tmp_path / "devices" / "sda", tmp_path / "devices" / "sda" / "sda1"
    partition.mkdir(parents=True)
    (disk / "dev").write_text("8:0\n")
    (partition / "dev").write_text("8:1\n")
    (partition / "partition").write_text("1\n")
    by_number = tmp_path / "block"
    by_number.mkdir()
    link = by_number / f"{os.major(number)}:{os.minor(number)}"
    assert disk_of(tmp_path, by_number) is None
    link.symlink_to(disk)
    assert disk_of(tmp_path, by_number) == "8:0"
    link.unlink()
    link.symlink_to(partition)
    assert disk_of(tmp_path, by_number) == "8:0"


@pytest.mark.parametrize("vcpus", [1, 2, 8])
@pytest.mark.parametrize("memory_mb", [128, 4096])
def test_limits_leave_room_for_all_that_was_asked_for(vcpus: int, memory_mb: int) -> None:
    limits = limits_of(Shape("minimal", vcpus, memory_mb, 2048))
    assert isinstance(limits, Limits)
    assert limits.vcpus > vcpus
    assert limits.memory_mb > 2 * memory_mb + OVERHEAD_MB
    assert limits.pids >= vcpus + 64
    assert limits.io_bytes_per_s is None or limits.io_bytes_per_s > 0
