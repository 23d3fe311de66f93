"""`pooldctl doctor`: every check as a function of facts, and the readers on the host that this runs on."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from poold.ctl import doctor
from poold.ctl.client import Client
from poold.ctl.doctor import Verdict, examine
from poold.ctl.facts import UNLIMITED, Disk, Facts, Limits, Poold, gather
from tests.unit.ctl import ctl_poold
from tests.unit.ctl.conftest import Ctl

SOUND = Facts(
    is_root=True,
    config_error=None,
    namespaces=frozenset({"net", "mnt", "pid", "user", "uts"}),
    nftables_error=None,
    tun_error=None,
    filesystems=frozenset({"ext4", "overlay"}),
    has_loop=True,
    cgroup_version=2,
    cgroup_controllers=frozenset({"cpu", "memory", "pids", "io"}),
    has_pressure=True,
    has_vsock=True,
    limits=Limits("poold (process 12)", 1 << 20, UNLIMITED),
    inotify_instances=1024,
    inotify_watches=524_288,
    disk=Disk(Path("/var/lib/warren"), 100 << 30, 0.5, 10_000_000),
    is_clock_synchronised=True,
    time_keeper="chronyd",
    qemu_version="7.2.0",
    has_zstd=True,
    kvm_error=None,
    images_dir=Path("/var/lib/warren/images"),
    images=("minimal",),
    socket=Path("/run/warren/poold.sock"),
    socket_mode=0o600,
    socket_uid=0,
    poold=Poold(None, None, "kvm"),
)
FULL = Disk(Path("/var"), 100 << 20, 0.01, 100)

TROUBLES: list[tuple[str, dict[str, Any], str, str]] = [
    ("user", {"is_root": False}, "warn", "sudo"),
    ("configuration", {"config_error": "POOLD_SLOTS must be …"}, "fail", "OPERATING.md"),
    ("namespaces", {"namespaces": frozenset({"mnt", "pid", "user"})}, "fail", "kernel"),
    ("nftables", {"nftables_error": "it cannot be loaded"}, "fail", "apt-get install libnftables1"),
    ("tun", {"tun_error": "No such file or directory"}, "fail", "modprobe tun"),
    ("overlay", {"filesystems": frozenset({"ext4"})}, "warn", "modprobe overlay"),
    ("loop", {"has_loop": False}, "warn", "modprobe loop"),
    ("cgroups", {"cgroup_version": None, "cgroup_controllers": frozenset()}, "fail", "unified_cgroup_hierarchy"),
    ("cgroups", {"cgroup_version": 1}, "warn", "unified_cgroup_hierarchy"),
    ("cgroups", {"cgroup_controllers": frozenset({"cpu", "pids", "io"})}, "warn", "cgroup_enable=memory"),
    ("pressure", {"has_pressure": False}, "warn", "psi=1"),
    ("vsock", {"has_vsock": False}, "warn", "modprobe vhost_vsock"),
    ("open files", {"limits": Limits("this shell", 4096, UNLIMITED)}, "warn", "ulimit -n"),
    ("open files", {"limits": Limits("this shell", 256, UNLIMITED)}, "fail", "LimitNOFILE"),
    ("processes", {"limits": Limits("this shell", UNLIMITED, 100)}, "fail", "LimitNPROC"),
    ("inotify", {"inotify_instances": 16}, "warn", "sysctl -w fs.inotify"),
    ("inotify", {"inotify_watches": None}, "warn", "inotify"),
    ("disk", {"disk": FULL}, "fail", "POOLD_STATE_DIR"),
    ("disk", {"disk": Disk(Path("/var"), 5 << 30, 0.5, None)}, "warn", "POOLD_STATE_DIR"),
    ("disk", {"disk": None}, "fail", "POOLD_STATE_DIR"),
    ("inodes", {"disk": FULL}, "fail", "du --inodes"),
    ("inodes", {"disk": replace(FULL, free_inodes=50_000)}, "warn", "du --inodes"),
    ("clock", {"is_clock_synchronised": False, "time_keeper": None}, "warn", "set-ntp true"),
    ("clock", {"is_clock_synchronised": False}, "warn", "timesync-status"),
    ("engine", {"qemu_version": None}, "fail", "apt-get install qemu-system-x86"),
    ("archives", {"has_zstd": False}, "warn", "apt-get install zstd"),
    ("kvm", {"kvm_error": "there is no /dev/kvm"}, "warn", "modprobe kvm_intel"),
    ("kvm", {"poold": Poold(None, None, "tcg")}, "warn", "log"),
    ("images", {"images": ()}, "fail", "pooldctl image build"),
    ("socket", {"socket_mode": None, "socket_uid": None}, "warn", "start poold"),
    ("socket", {"socket_mode": 0o666}, "fail", "chmod 0600"),
    ("socket", {"socket_uid": 1000}, "fail", "chown root"),
    ("poold", {"poold": Poold("there is no socket")}, "warn", "systemctl start poold"),
    ("poold", {"poold": Poold(None, "not_ready: draining")}, "warn", "pooldctl status"),
]


def test_a_sound_host_has_nothing_to_mend() -> None:
    checks = examine(SOUND)
    assert [check for check in checks if check.verdict is not Verdict.OK or check.mend] == []
    assert len({check.name for check in checks}) == len(checks)


@pytest.mark.parametrize(("name", "change", "verdict", "mend"), TROUBLES)
def test_every_trouble_is_told_with_what_mends_it(name: str, change: dict[str, Any], verdict: str, mend: str) -> None:
    (check,) = [check for check in examine(replace(SOUND, **change)) if check.name == name]
    assert check.verdict == verdict
    assert mend in check.mend
    assert check.detail


def test_every_check_can_find_trouble() -> None:
    assert {name for name, *_ in TROUBLES} == {check.name for check in examine(SOUND)}


def test_without_kvm_it_is_said_that_it_works_all_the_same() -> None:
    assert "TCG: works, slower" in doctor.kvm(replace(SOUND, kvm_error="there is no /dev/kvm")).detail


def test_the_readers_find_this_host(poold: ctl_poold.Poold, folder: Path) -> None:
    client = Client(folder / "poold.sock", 5)
    facts = gather({"POOLD_SLOTS": "many"}, client, {"POOLD_STATE_DIR": str(folder / "not" / "yet")})
    assert facts.is_root == (os.geteuid() == 0)
    assert "POOLD_SLOTS" in (facts.config_error or "")
    assert {"net", "mnt"} <= facts.namespaces
    assert "ext4" in facts.filesystems or facts.filesystems
    assert facts.limits.whose == f"poold (process {os.getpid()})"  # it is played here
    assert facts.limits.open_files > 0
    assert facts.disk is not None
    assert facts.disk.folder == folder
    assert facts.images == ()
    assert facts.socket_mode is not None
    assert (facts.poold.trouble, facts.poold.unready, facts.poold.accel) == (None, None, "tcg")


def test_folders_are_those_of_the_poold_that_answers(poold: ctl_poold.Poold, folder: Path) -> None:
    state, images = folder / "state", folder / "images"
    for path in (state, images / "minimal-abc"):
        path.mkdir(parents=True)
    (images / "minimal-abc" / "manifest.json").write_text("{}")
    (images / "minimal").symlink_to("minimal-abc")
    told = {"ledger": {"path": str(state / "ledger.db")}, "images_dir": str(images)}
    poold.answers["GET", "/admin/status"] = {**ctl_poold.status(), **told}
    elsewhere = {"POOLD_STATE_DIR": "/nowhere", "POOLD_IMAGES": "/nowhere"}
    facts = gather(elsewhere, Client(folder / "poold.sock", 5))
    assert (facts.images_dir, facts.images) == (images, ("minimal",))
    assert facts.disk is not None
    assert facts.disk.folder == state
    assert gather({}, Client(folder / "poold.sock", 5), elsewhere).images_dir == Path("/nowhere")


def test_images_are_links_to_whole_builds(folder: Path) -> None:
    (folder / "minimal-abc").mkdir()
    (folder / "minimal").symlink_to("minimal-abc")
    client = Client(folder / "none.sock", 5)
    assert gather({"POOLD_IMAGES": str(folder)}, client).images == ()
    (folder / "minimal-abc" / "manifest.json").write_text("{}")
    found = gather({"POOLD_IMAGES": str(folder)}, client)
    assert found.images == ("minimal",)
    assert found.limits.whose == "this shell"
    assert found.socket_mode is None
    assert "there is no socket" in (found.poold.trouble or "")


def test_it_runs_without_poold_and_fails_if_something_does(ctl: Ctl, folder: Path) -> None:
    ran = ctl("doctor", "--json", "--images", str(folder))
    assert ran.code == 1
    assert ran.json["ok"] is False
    assert {"name", "verdict", "detail", "mend"} == set(ran.json["checks"][0])
    by_name = {check["name"]: check for check in ran.json["checks"]}
    assert by_name["images"]["verdict"] == "fail"
    assert str(folder) in by_name["images"]["mend"]
    assert by_name["poold"]["verdict"] == "warn"
    said = ctl("doctor", "--images", str(folder)).out
    assert f"fail  images         none in {folder}" in said
    assert "→ pooldctl image build" in said


def test_a_poold_that_is_not_ready_is_told(ctl: Ctl, poold: ctl_poold.Poold) -> None:
    poold.answers["GET", "/readyz"] = ctl_poold.Refusal(503, "not_ready", "it drains")
    by_name = {check["name"]: check for check in ctl("doctor", "--json").json["checks"]}
    assert by_name["poold"]["detail"] == "it answers, and is not ready: not_ready: it drains"
