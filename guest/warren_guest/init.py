"""The first minutes of a machine: from a read-only image to a root that can be written, a network and a listener.

Runs once, before anything is served, and says each step on the kernel's log. What a machine cannot do without raises:
the kernel then panics, which is how the host learns of it. This room never reads the kernel's boot id: each machine
restored from a snapshot gets its own at the first read.
"""

import contextlib
import logging
import os
import resource
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warren_guest import precedence, syscalls, timers
from warren_guest.browser.launch import Trust
from warren_guest.git import wrapper
from warren_guest.git.places import MACHINE
from warren_guest.groups import open_groups
from warren_guest.guest import PATH, Config
from warren_guest.identity import CA_BUNDLE, CA_FILE, CA_FOLDER, VirtualMachine, set_hostname, write_text
from warren_guest.logs import Console
from warren_guest.server import PeerCheck
from warren_guest.spawn import OomShield

log = logging.getLogger(__name__)

# The writable drive, by the link that the initramfs made from its label, or by its place.
DRIVES = ("/dev/warren-drive", "/dev/vdb")
USER, USER_ID = "user", 1000
PORT = 1024
HOST_CID = 2
ADDRESS, NETMASK, GATEWAY = "172.16.0.2", "255.255.255.252", "172.16.0.1"
GATEWAY_LLADDR = "02:57:41:52:00:01"
MTU = 1500
_OPEN_FILES = 65_536
_ONLY_DESCENDANTS = 1

_POLICIES = "/etc/chromium/policies/managed"

_QUIET = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
_HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"


@dataclass(frozen=True, slots=True)
class Booted:
    """A machine that can be used: what to serve with, where, and whom."""

    config: Config
    listener: socket.socket
    is_served: PeerCheck
    console: Console

    def say_ready(self) -> None:
        """The last line on the console; from now on the log is asked for over HTTP."""
        log.info("ready on %s", self.listener.getsockname())
        logging.getLogger().removeHandler(self.console)


def become_init() -> Booted:
    """Make the machine usable. Nothing may have been started yet."""
    os.umask(0)
    _mount_kernel_views()
    console = _open_console()
    timers.check()
    log.info("laying the drive over the image")
    upper = _pivot_to_overlay()
    _mount_run_time()
    _prepare_files()
    log.info("configuring the network")
    _configure_network()
    shield = _harden()
    random_fd = os.open("/dev/urandom", os.O_RDWR | os.O_CLOEXEC)
    listener, is_served = _listen()
    machine = VirtualMachine(random_fd)
    trust = Trust(f"{CA_FOLDER}/{CA_FILE}", _POLICIES)
    config = Config(
        machine, USER, shield=shield.lowered, git=MACHINE, browser_trust=trust, groups=open_groups(), upper=upper
    )
    return Booted(config, listener, is_served, console)


def _mount_if_missing(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """Mount, unless the initramfs already did."""
    if not os.path.ismount(target):
        syscalls.mount(source, target, kind, flags, options)


def _mount_kernel_views() -> None:
    _mount_if_missing("proc", "/proc", "proc", _QUIET)
    _mount_if_missing("sysfs", "/sys", "sysfs", _QUIET)
    _mount_if_missing("devtmpfs", "/dev", "devtmpfs", syscalls.MS_NOSUID, "mode=0755")


def _open_console() -> Console:
    """Log to the kernel's log too. Standard streams that the kernel could not open must not become other files."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
    console = Console(os.open("/dev/kmsg", os.O_WRONLY | os.O_CLOEXEC))
    logging.getLogger().addHandler(console)
    return console


def _pivot_to_overlay() -> str:
    """Make a root of the image below and the drive above. Afterwards neither is to be seen, and both stay in use.

    Returns a way to the folder with what is not as in the image, which only the superuser can go.
    """
    syscalls.mount("none", "/", None, syscalls.MS_PRIVATE | syscalls.MS_REC)
    syscalls.mount("tmpfs", "/run", "tmpfs", _QUIET, "mode=0755")
    drive, root = Path("/run/drive"), Path("/run/root")
    drive.mkdir()
    root.mkdir()
    _mount_drive(str(drive))
    for name in ("upper", "work"):
        (drive / name).mkdir(0o755, exist_ok=True)
    layers = f"lowerdir=/,upperdir={drive}/upper,workdir={drive}/work"
    syscalls.mount("overlay", str(root), "overlay", syscalls.MS_NOATIME, layers)
    upper = os.open(drive / "upper", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for view in ("proc", "sys", "dev"):
        (root / view).mkdir(0o755, exist_ok=True)
        syscalls.mount(f"/{view}", f"{root}/{view}", None, syscalls.MS_MOVE)
    os.chdir(root)
    # Both roots stand on the same place for a moment; the old one is on top and goes.
    syscalls.pivot_root(".", ".")
    syscalls.unmount(".", syscalls.MNT_DETACH)
    os.chdir("/")
    return f"/proc/{os.getpid()}/fd/{upper}"


def _mount_drive(target: str) -> None:
    for device in DRIVES:
        if os.path.exists(device):  # noqa: PTH110
            syscalls.mount(device, target, "ext4", syscalls.MS_NOATIME)
            return
    log.warning("there is no writable drive; what is written stays in memory")
    syscalls.mount("tmpfs", target, "tmpfs", 0, "mode=0755")


def _mount_run_time() -> None:
    for folder, mode in (("/run", 0o755), ("/tmp", 0o1777), ("/dev/pts", 0o755), ("/dev/shm", 0o1777)):  # noqa: S108
        Path(folder).mkdir(exist_ok=True)
        Path(folder).chmod(mode)
    _mount_if_missing("tmpfs", "/run", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755")
    Path("/run/lock").mkdir(0o1777, exist_ok=True)
    terminals = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    _mount_if_missing("devpts", "/dev/pts", "devpts", terminals, "mode=0620,ptmxmode=0666,gid=5")
    _mount_if_missing("tmpfs", "/dev/shm", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=1777")  # noqa: S108
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _link(f"/dev/{name}", f"/proc/self/fd/{number}")
    _link("/dev/fd", "/proc/self/fd")
    with contextlib.suppress(OSError):  # a kernel without cgroups runs sandboxes as well
        _mount_if_missing("cgroup2", "/sys/fs/cgroup", "cgroup2", _QUIET)


def _link(path: str, target: str) -> None:
    with contextlib.suppress(FileExistsError):
        Path(path).symlink_to(target)


def _prepare_files() -> None:
    """Write what an identity will write again: the overlay then has its own copy, and a claim does not wait for one."""
    write_text("/etc/hosts", _HOSTS)
    set_hostname("warren")
    write_text("/etc/resolv.conf", f"nameserver {GATEWAY}\n")
    # Empty means: not known yet. Whoever needs one before a claim makes up its own.
    write_text("/etc/machine-id", "")
    if Path(CA_BUNDLE).exists():
        os.close(os.open(CA_BUNDLE, os.O_RDWR | os.O_CLOEXEC))
    Path(CA_FOLDER).mkdir(0o755, parents=True, exist_ok=True)
    (Path(CA_FOLDER) / CA_FILE).touch()
    (Path(CA_FOLDER) / CA_FILE).unlink()
    if not wrapper.install():
        log.info("git has no wrapper in this image: pushes are its own affair")
    workspace = Path("/workspace")
    if not workspace.exists():
        workspace.mkdir(0o755)
        os.chown(workspace, USER_ID, USER_ID)


def _configure_network() -> None:
    syscalls.link_up("lo")
    cards = sorted(card.name for card in Path("/sys/class/net").iterdir() if (card / "device").exists())
    if not cards:
        log.warning("there is no network card")
        return
    syscalls.configure_link(cards[0], ADDRESS, NETMASK, MTU)
    syscalls.add_default_route(GATEWAY)
    syscalls.add_neighbour(cards[0], GATEWAY, GATEWAY_LLADDR)


def _harden() -> OomShield:
    """Limits and surroundings of the supervisor; what it starts inherits the limits, not the surroundings."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.RLIM_INFINITY))
    precedence.limit_processes()
    precedence.share_by_session()
    precedence.stay_in_memory()
    _forbid_tracing()
    os.environ.clear()
    os.environ.update(PATH=PATH, LANG="C.UTF-8", HOME="/root")
    return OomShield(os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC))


def _forbid_tracing() -> None:
    """A process may look into those that it started, and into no others: an agent is not what its tools say it is."""
    with contextlib.suppress(OSError):  # a kernel without it
        scope = Path("/proc/sys/kernel/yama/ptrace_scope")
        if int(scope.read_text()) < _ONLY_DESCENDANTS:
            scope.write_text(str(_ONLY_DESCENDANTS))


def _listen() -> tuple[socket.socket, PeerCheck]:
    """Vsock where the machine has it, else TCP on its card."""
    try:
        return _listen_vsock(), _is_host_on_vsock
    except OSError as exc:
        log.info("no vsock (%s), serving on %s", exc.strerror or exc, ADDRESS)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((ADDRESS, PORT))
    return listener, _is_host_on_tcp


def _listen_vsock() -> socket.socket:
    device = os.open("/dev/vsock", os.O_RDONLY | os.O_CLOEXEC)
    try:
        cid = syscalls.vsock_cid(device)
    finally:
        os.close(device)
    # The driver alone, without a device, answers with "any" or "local"; guests begin at 3.
    if not HOST_CID < cid < socket.VMADDR_CID_ANY:
        raise OSError(f"the machine has no vsock device (cid {cid})")
    listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind((socket.VMADDR_CID_ANY, PORT))
    return listener


def _is_host_on_vsock(peername: Any) -> bool:
    return bool(peername[0] == HOST_CID)


def _is_host_on_tcp(peername: Any) -> bool:
    return bool(peername[0] == GATEWAY)
