"""What a poold leaves on its host, found by looking where poold does not."""

import contextlib
import os
import subprocess
from pathlib import Path

from poold import processes
from poold.egress.forks import UID_OFFSET
from poold.ledger.driver import sqlite3


def ledger_machine(state: Path, sandbox_id: str) -> str:
    """The machine of a sandbox, which callers are not told."""
    with contextlib.closing(sqlite3.connect(f"file:{state}/ledger.db?mode=ro", uri=True)) as db:
        row = db.execute("SELECT machine FROM sandboxes WHERE id = ?", [sandbox_id]).fetchone()
    machine: str = row[0]
    return machine


def machines(state: Path) -> dict[str, int]:
    """The machines of the poold with this state that have a process, and its pid."""
    folder = f"{state}/qemu/machines/"
    found = {}
    for pid, arguments in _processes():
        for argument in arguments:
            if argument.startswith(folder) and arguments[0].startswith("qemu-system"):
                found[argument.removeprefix(folder)] = pid
    return found


def proxies(base_uid: int, slots: int) -> list[int]:
    """The users of the slots that have a proxy, once for each proxy. One that has ended is none."""
    users = range(base_uid, base_uid + slots)
    found = []
    for pid, _ in _processes():
        user = (processes.owner(pid) or 0) - UID_OFFSET
        with contextlib.suppress(OSError):
            if user in users and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
                found.append(user)
    return found


def folders(state: Path) -> set[str]:
    """The machines that have files."""
    return {path.name for path in (state / "qemu" / "machines").iterdir()}


def mentioning(path: Path) -> list[str]:
    """Processes that were told of `path` or have a file below it open, and mounts there."""
    found = []
    for pid, arguments in _processes():
        if any(str(path) in argument for argument in arguments) or _has_open(pid, path):
            found.append(f"process {pid}: {' '.join(arguments)[:200]}")
    return found + mounts(path)


def mounts(path: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(path) in line]


def host_network() -> list[str]:
    """Named namespaces and links of the host itself: poold must add nothing to them."""
    commands = (["ip", "netns", "list"], ["ip", "-o", "-br", "link"])
    said = [subprocess.run(argv, check=True, capture_output=True, text=True).stdout for argv in commands]
    return sorted(line.split()[0] for lines in said for line in lines.splitlines())


def peak_mb(pid: int) -> float:
    """The most memory that the process has had since `forget_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no memory")


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _processes() -> list[tuple[int, list[str]]]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                found.append((int(entry.name), (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")))
    return found


def _has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(os.readlink(link).startswith(f"{path}/") for link in Path(f"/proc/{pid}/fd").iterdir())
    return False
