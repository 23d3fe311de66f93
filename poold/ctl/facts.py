"""What `pooldctl doctor` looks at: thin readers, each of which gives what it found and never fails."""

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import shutil
import socket
import stat
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from poold.config import Config
from poold.ctl.client import Client
from poold.ctl.errors import CtlError, Refused
from poold.errors import ConfigError

KVM_GET_API_VERSION, KVM_CREATE_VM, KVM_API = 0xAE00, 0xAE01, 12
STA_UNSYNC = 0x40
TIMEX_BYTES, TIMEX_STATUS_AT = 208, 40
NFT_QUIET_BYTES = 1 << 12
TIME_KEEPERS = (
    "chronyd",
    "ntpd",
    "systemd-timesyn",
    "openntpd",
    "ptp4l",
    "phc2sys",
)  # a process's name has 15 characters
QEMU = "qemu-system-x86_64"


@dataclass(frozen=True)
class Limits:
    """Of poold itself where it runs, else of who asks."""

    whose: str
    open_files: int
    processes: int


@dataclass(frozen=True)
class Disk:
    folder: Path  # the one that was looked at: the state folder, or where it would be made
    free_bytes: int
    free_share: float
    free_inodes: int | None  # None: this file system has as many as it needs


@dataclass(frozen=True)
class Poold:
    """What the daemon says of itself. `trouble` is why it does not."""

    trouble: str | None
    unready: str | None = None
    accel: str | None = None
    state_dir: Path | None = None
    images_dir: Path | None = None


@dataclass(frozen=True)
class Facts:
    """This host, as far as poold depends on it. What is None or a text where nothing was expected is amiss."""

    is_root: bool
    config_error: str | None
    namespaces: frozenset[str]
    nftables_error: str | None
    tun_error: str | None
    filesystems: frozenset[str]
    has_loop: bool
    cgroup_version: int | None
    cgroup_controllers: frozenset[str]
    has_pressure: bool
    has_vsock: bool
    limits: Limits
    inotify_instances: int | None
    inotify_watches: int | None
    disk: Disk | None
    is_clock_synchronised: bool | None
    time_keeper: str | None
    qemu_version: str | None
    has_zstd: bool
    kvm_error: str | None
    images_dir: Path
    images: tuple[str, ...]
    socket: Path
    socket_mode: int | None
    socket_uid: int | None
    poold: Poold


def gather(environ: Mapping[str, str], client: Client, named: Mapping[str, str] | None = None) -> Facts:
    """`named` are variables that somebody asked for. Folders are those, else what poold says, else by `environ`."""
    named = named or {}
    poold = _poold(client)
    state, images_dir = _folders(poold, environ, named)
    version, controllers = _cgroups()
    found = _stat(client.path)
    return Facts(
        is_root=os.geteuid() == 0,
        config_error=_config_error({**environ, **named}),
        namespaces=_names(Path("/proc/self/ns")),
        nftables_error=_nftables(),
        tun_error=_opened(Path("/dev/net/tun")),
        filesystems=frozenset(line.split()[-1] for line in _text(Path("/proc/filesystems")).splitlines()),
        has_loop=Path("/dev/loop-control").exists(),
        cgroup_version=version,
        cgroup_controllers=controllers,
        has_pressure=bool(_text(Path("/proc/pressure/memory"))),
        has_vsock=Path("/dev/vhost-vsock").exists(),
        limits=_limits(client.path),
        inotify_instances=_number(Path("/proc/sys/fs/inotify/max_user_instances")),
        inotify_watches=_number(Path("/proc/sys/fs/inotify/max_user_watches")),
        disk=_disk(state),
        is_clock_synchronised=_is_synchronised(),
        time_keeper=_time_keeper(),
        qemu_version=_qemu_version(),
        has_zstd=shutil.which("zstd") is not None,
        kvm_error=_kvm(),
        images_dir=images_dir,
        images=_images(images_dir),
        socket=client.path,
        socket_mode=None if found is None else stat.S_IMODE(found.st_mode),
        socket_uid=None if found is None else found.st_uid,
        poold=poold,
    )


def _folders(poold: Poold, environ: Mapping[str, str], named: Mapping[str, str]) -> tuple[Path, Path]:
    """For the state and for images."""
    told = {"POOLD_STATE_DIR": poold.state_dir, "POOLD_IMAGES": poold.images_dir}
    said = {**environ, **{name: str(path) for name, path in told.items() if path is not None}, **named}
    state = Path(said.get("POOLD_STATE_DIR", "/var/lib/warren"))
    return state, Path(said.get("POOLD_IMAGES", state / "images")).absolute()


def _config_error(environ: Mapping[str, str]) -> str | None:
    memory_mb = os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    try:
        cpus, name = os.cpu_count() or 1, socket.gethostname()
        Config.from_environment(environ, host_memory_mb=memory_mb, host_cpus=cpus, hostname=name)
    except ConfigError as error:
        return str(error)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(path.name for path in folder.iterdir())
    except OSError:
        return frozenset()


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _opened(path: Path) -> str | None:
    """Why `path` cannot be opened to be used."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    return None


def _nftables() -> str | None:
    """Load the library that poold uses, and let it ask the kernel for its tables, which needs root."""
    try:
        library = ctypes.CDLL("libnftables.so.1")
    except OSError as error:
        return f"the library cannot be loaded: {error}"
    if os.geteuid() != 0:
        return None
    library.nft_ctx_new.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    try:
        # Buffered, or what it finds would be printed.
        library.nft_ctx_buffer_output(context)
        library.nft_ctx_buffer_error(context)
        if library.nft_run_cmd_from_buffer(context, b"list tables") == 0:
            return None
        library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
        return (library.nft_ctx_get_error_buffer(context) or b"").decode("utf-8", "replace").strip() or "it refuses"
    finally:
        library.nft_ctx_free(context)


def _cgroups() -> tuple[int | None, frozenset[str]]:
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    if unified.exists():
        return 2, frozenset(_text(unified).split())
    rows = [line.split() for line in _text(Path("/proc/cgroups")).splitlines() if not line.startswith("#")]
    mounted = _names(Path("/sys/fs/cgroup"))
    found = frozenset(row[0] for row in rows if len(row) == 4 and row[3] == "1" and row[0] in mounted)
    return (1, found) if found else (None, found)


def _limits(path: Path) -> Limits:
    """Limits belong to a process: poold's are read through its socket, which tells who listens."""
    pid = _listener(path)
    lines = _text(Path(f"/proc/{pid}/limits")).splitlines() if pid else []
    soft = {line[:26].strip(): line[26:].split()[0] for line in lines[1:]}
    with contextlib.suppress(KeyError, ValueError):
        return Limits(f"poold (process {pid})", _limit(soft["Max open files"]), _limit(soft["Max processes"]))
    files, processes = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    return Limits(
        "this shell", *(UNLIMITED if value == resource.RLIM_INFINITY else value for value in (files, processes))
    )


UNLIMITED = 1 << 62


def _limit(text: str) -> int:
    return UNLIMITED if text == "unlimited" else int(text)


def _listener(path: Path) -> int | None:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(2)
            probe.connect(str(path))
            size = struct.calcsize("3i")
            pid: int = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
            return pid
    except OSError:
        return None


def _disk(state: Path) -> Disk | None:
    folder = next((path for path in (state, *state.parents) if path.exists()), None)
    if folder is None:
        return None
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return Disk(
        folder=folder,
        free_bytes=found.f_bavail * found.f_frsize,
        free_share=found.f_bavail / found.f_blocks if found.f_blocks else 1.0,
        free_inodes=found.f_favail if found.f_files else None,
    )


def _is_synchronised() -> bool | None:
    """What the kernel thinks of its clock."""
    buffer = ctypes.create_string_buffer(TIMEX_BYTES)  # all zero: a question that changes nothing
    if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
        return None
    (status,) = struct.unpack_from("i", buffer, TIMEX_STATUS_AT)
    return not status & STA_UNSYNC


def _time_keeper() -> str | None:
    """A service that sets the clock, if one runs."""
    for pid in filter(str.isdigit, _names(Path("/proc"))):
        name = _text(Path(f"/proc/{pid}/comm")).strip()
        if name in TIME_KEEPERS:
            return name
    return None


def _qemu_version() -> str | None:
    path = shutil.which(QEMU)
    if path is None:
        return None
    try:
        asked = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    first = asked.stdout.splitlines()[:1]
    return first[0].removeprefix("QEMU emulator version ") if asked.returncode == 0 and first else None


def _kvm() -> str | None:
    """Why KVM makes no machine: it is asked for an empty one, which goes at once."""
    try:
        device = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return "there is no /dev/kvm" if error.errno == errno.ENOENT else f"/dev/kvm: {error.strerror}"
    try:
        version = fcntl.ioctl(device, KVM_GET_API_VERSION, 0)
        if version != KVM_API:
            return f"/dev/kvm speaks version {version}, not {KVM_API}"
        os.close(fcntl.ioctl(device, KVM_CREATE_VM, 0))
    except OSError as error:
        return f"/dev/kvm makes no machine: {error.strerror}"
    finally:
        os.close(device)
    return None


def _images(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(name for name in _names(folder) if _is_image(folder / name)))


def _is_image(pointer: Path) -> bool:
    return pointer.is_symlink() and (pointer / "manifest.json").is_file()


def _poold(client: Client) -> Poold:
    try:
        client.get("/healthz")
    except CtlError as error:
        return Poold(trouble=error.message)
    unready = None
    try:
        client.get("/readyz")
    except CtlError as error:
        unready = error.message
    try:
        status = client.get("/admin/status")
        state_dir = Path(status["ledger"]["path"]).parent
        return Poold(None, unready, status["accel"], state_dir, Path(status["images_dir"]))
    except (CtlError, KeyError, TypeError) as error:
        return Poold(None, unready or (error.message if isinstance(error, Refused) else None))
