"""`pooldctl doctor`: is this host fit for poold, and if not, what mends it? Checks are functions of `Facts`."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum

from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.facts import UNLIMITED, Facts, gather
from warren_console.text import size

# Each machine holds a few dozen files open in poold and QEMU; poold's own limit is what matters.
FILES = (1024, 16_384)  # fewer fail, fewer warn
PROCESSES = (512, 8192)
FEW_INSTANCES, FEW_WATCHES = 128, 8192
LOW_DISK, LITTLE_DISK = 1 << 30, 10 << 30
LITTLE_DISK_SHARE = 0.1
LOW_INODES, FEW_INODES = 1000, 100_000
NEEDED_NAMESPACES = ("net", "mnt", "pid", "user")
WANTED_CONTROLLERS = ({"cpu"}, {"memory"}, {"pids"}, {"io", "blkio"})  # version 1 has another name for the last
PATIENCE_S = 5.0


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """What was looked at, and how it is; `mend` says what to do about it, with a command where there is one."""

    name: str
    verdict: Verdict
    detail: str
    mend: str = ""


def ok(name: str, detail: str) -> Check:
    return Check(name, Verdict.OK, detail)


def warn(name: str, detail: str, mend: str) -> Check:
    return Check(name, Verdict.WARN, detail, mend)


def fail(name: str, detail: str, mend: str) -> Check:
    return Check(name, Verdict.FAIL, detail, mend)


def doctor(context: Context) -> int:
    """Exits with 1 if something failed; what only warns does not keep poold from working."""
    context.poold.timeout_s = min(context.poold.timeout_s, PATIENCE_S)
    checks = examine(gather(os.environ, context.poold, _named(context)))
    has_failed = any(check.verdict is Verdict.FAIL for check in checks)
    if context.out.as_json:
        context.out.json({"ok": not has_failed, "checks": [asdict(check) for check in checks]})
    else:
        _print(context, checks)
    return errors.FAILED if has_failed else errors.DONE


def _named(context: Context) -> dict[str, str]:
    """The variables that options stand for."""
    named = {"POOLD_STATE_DIR": context.asked.state_dir, "POOLD_IMAGES": context.asked.images}
    return {name: value for name, value in named.items() if value is not None}


def _print(context: Context, checks: list[Check]) -> None:
    columns = max(len(check.name) for check in checks)
    for check in checks:
        context.out.line(f"{check.verdict:<4}  {check.name:<{columns}}  {check.detail}")
        if check.mend:
            context.out.line(f"{'':4}  {'':{columns}}  → {check.mend}")
    counts = {verdict: sum(check.verdict is verdict for check in checks) for verdict in Verdict}
    context.out.line()
    context.out.line(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def examine(facts: Facts) -> list[Check]:
    return [check(facts) for check in CHECKS]


def root(facts: Facts) -> Check:
    if facts.is_root:
        return ok("user", "root")
    return warn("user", "not root: poold needs it, and some checks see less", "sudo pooldctl doctor")


def configuration(facts: Facts) -> Check:
    if facts.config_error is None:
        return ok("configuration", "the POOLD_ variables here make sense")
    return fail("configuration", facts.config_error, "set it right; docs/OPERATING.md has them all")


def namespaces(facts: Facts) -> Check:
    missing = [name for name in NEEDED_NAMESPACES if name not in facts.namespaces]
    if not missing:
        return ok("namespaces", ", ".join(NEEDED_NAMESPACES))
    return fail(
        "namespaces", f"missing: {', '.join(missing)}", "use a kernel that has them, as Debian's linux-image-amd64"
    )


def nftables(facts: Facts) -> Check:
    if facts.nftables_error is None:
        return ok("nftables", "the library loads" + (", the kernel answers" if facts.is_root else ""))
    return fail("nftables", facts.nftables_error, "apt-get install libnftables1 && modprobe nf_tables")


def tun(facts: Facts) -> Check:
    if facts.tun_error is None:
        return ok("tun", "/dev/net/tun opens")
    return fail("tun", f"/dev/net/tun: {facts.tun_error}", "modprobe tun (as root)")


def overlay(facts: Facts) -> Check:
    if "overlay" in facts.filesystems:
        return ok("overlay", "the kernel has it")
    return warn("overlay", "the kernel has not loaded it", "modprobe overlay")


def loop(facts: Facts) -> Check:
    if facts.has_loop:
        return ok("loop", "/dev/loop-control is there")
    return warn("loop", "no loop devices: images cannot be mounted here to look into them", "modprobe loop")


def cgroups(facts: Facts) -> Check:
    boot = "boot with systemd.unified_cgroup_hierarchy=1"
    if facts.cgroup_version is None:
        return fail("cgroups", "no controllers are mounted under /sys/fs/cgroup", f"mount them, or {boot}")
    missing = ["/".join(sorted(names)) for names in WANTED_CONTROLLERS if not names & facts.cgroup_controllers]
    if missing:
        detail = f"version {facts.cgroup_version}, without {', '.join(missing)}"
        return warn("cgroups", detail, "boot with cgroup_enable=memory, and see /sys/fs/cgroup/cgroup.subtree_control")
    if facts.cgroup_version == 1:
        return warn("cgroups", "version 1; it works, version 2 is better looked after", boot)
    return ok("cgroups", f"version 2: {', '.join(sorted(facts.cgroup_controllers))}")


def pressure(facts: Facts) -> Check:
    if facts.has_pressure:
        return ok("pressure", "the kernel tells (PSI)")
    return warn("pressure", "the kernel does not tell when memory runs short (PSI)", "boot with psi=1")


def vsock(facts: Facts) -> Check:
    if facts.has_vsock:
        return ok("vsock", "/dev/vhost-vsock is there")
    return warn("vsock", "no /dev/vhost-vsock: guests are reached over their network card", "modprobe vhost_vsock")


def open_files(facts: Facts) -> Check:
    mend = f"in poold's unit: LimitNOFILE=1048576; in a shell: ulimit -n {FILES[1]}"
    return _limit("open files", facts.limits.open_files, FILES, facts.limits.whose, mend)


def processes(facts: Facts) -> Check:
    mend = f"in poold's unit: LimitNPROC=infinity; in a shell: ulimit -u {PROCESSES[1]}"
    return _limit("processes", facts.limits.processes, PROCESSES, facts.limits.whose, mend)


def _limit(name: str, have: int, bounds: tuple[int, int], whose: str, mend: str) -> Check:
    low, few = bounds
    count = "without limit" if have >= UNLIMITED else f"at most {have}"
    if have >= few:
        return ok(name, f"{count} for {whose}")
    return (fail if have < low else warn)(name, f"{count} for {whose}", mend)


def inotify(facts: Facts) -> Check:
    instances, watches = facts.inotify_instances, facts.inotify_watches
    if instances is None or watches is None:
        return warn("inotify", "the kernel does not tell its limits", "use a kernel with inotify")
    detail = f"{instances} instances, {watches} watches for each user"
    if instances >= FEW_INSTANCES and watches >= FEW_WATCHES:
        return ok("inotify", detail)
    mend = "sysctl -w fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288"
    return warn("inotify", detail, mend)


def disk(facts: Facts) -> Check:
    if facts.disk is None:
        return fail("disk", "the state folder cannot be looked at", "set POOLD_STATE_DIR to a folder on a real disk")
    found = facts.disk
    detail = f"{size(found.free_bytes)} free ({found.free_share:.0%}) in {found.folder}"
    mend = (
        "remove what is not needed (pooldctl sandboxes ls, pooldctl image ls), or move POOLD_STATE_DIR to a larger disk"
    )
    if found.free_bytes < LOW_DISK:
        return fail("disk", detail, mend)
    if found.free_bytes < LITTLE_DISK or found.free_share < LITTLE_DISK_SHARE:
        return warn("disk", detail, mend)
    return ok("disk", detail)


def inodes(facts: Facts) -> Check:
    free = None if facts.disk is None else facts.disk.free_inodes
    if free is None:
        return ok("inodes", "as many as are needed")
    detail = f"{free} free in {facts.disk.folder if facts.disk else '-'}"
    if free >= FEW_INODES:
        return ok("inodes", detail)
    return (fail if free < LOW_INODES else warn)(
        "inodes", detail, "remove small files there: du --inodes -x / | sort -n"
    )


def clock(facts: Facts) -> Check:
    if facts.is_clock_synchronised:
        return ok("clock", "synchronised" + (f" by {facts.time_keeper}" if facts.time_keeper else ""))
    if facts.time_keeper is not None:
        return warn(
            "clock", f"{facts.time_keeper} runs, and has not set it yet", "wait, then: timedatectl timesync-status"
        )
    return warn("clock", "nobody keeps it right", "apt-get install systemd-timesyncd && timedatectl set-ntp true")


def engine(facts: Facts) -> Check:
    if facts.qemu_version is None:
        return fail("engine", "qemu-system-x86_64 is not installed, or does not run", "apt-get install qemu-system-x86")
    return ok("engine", f"QEMU {facts.qemu_version}")


def archives(facts: Facts) -> Check:
    if not facts.has_zstd:
        return warn("archives", "zstd is not installed: workspaces of tasks are not kept", "apt-get install zstd")
    return ok("archives", "zstd compresses them")


def kvm(facts: Facts) -> Check:
    if facts.kvm_error is not None:
        mend = "switch virtualisation on (in the firmware, or nested in the host above); modprobe kvm_intel or kvm_amd"
        return warn("kvm", f"TCG: works, slower ({facts.kvm_error})", mend)
    if facts.poold.accel == "tcg":
        return warn(
            "kvm",
            "KVM makes a machine, but poold found that none runs on it: TCG, slower",
            "see poold's log at its start",
        )
    return ok("kvm", "makes a machine")


def images(facts: Facts) -> Check:
    if facts.images:
        return ok("images", f"{', '.join(facts.images)} in {facts.images_dir}")
    return fail(
        "images", f"none in {facts.images_dir}", f"pooldctl image build minimal python --out {facts.images_dir}"
    )


def socket_permissions(facts: Facts) -> Check:
    if facts.socket_mode is None:
        return warn("socket", f"there is no {facts.socket}", "start poold; it makes it")
    detail = f"{facts.socket}, mode {facts.socket_mode:04o}, user {facts.socket_uid}"
    if facts.socket_mode & 0o077 or facts.socket_uid != 0:
        mend = f"chown root:root {facts.socket} && chmod 0600 {facts.socket}"
        return fail("socket", f"{detail}: whoever may write to it may do everything", mend)
    return ok("socket", detail)


def daemon(facts: Facts) -> Check:
    if facts.poold.trouble is not None:
        return warn("poold", facts.poold.trouble, "start it: systemctl start poold, or where the sources are: make up")
    if facts.poold.unready is not None:
        return warn("poold", f"it answers, and is not ready: {facts.poold.unready}", "pooldctl status")
    return ok("poold", "it answers, and is ready")


CHECKS: tuple[Callable[[Facts], Check], ...] = (
    root,
    configuration,
    namespaces,
    nftables,
    tun,
    overlay,
    loop,
    cgroups,
    pressure,
    vsock,
    open_files,
    processes,
    inotify,
    disk,
    inodes,
    clock,
    engine,
    archives,
    kvm,
    images,
    socket_permissions,
    daemon,
)
