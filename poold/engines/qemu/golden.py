"""Golden snapshots on disk: a folder with the memory, the devices and the drive of one frozen machine."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

from contract.models import Shape
from poold.engines import Snapshot, sparse
from poold.engines.qemu.made import Made
from poold.engines.qemu.qmp import Qmp
from poold.errors import EngineError

FORMAT = "3"  # part of every snapshot's key: raise it when the files below change their meaning
MEMORY = "memory"
DEVICES = "devices"
DRIVE = "drive"
ROOT = "root"
CONSOLE = "console.log"
FREEZE_LIMIT_S = 60
MOST_SNAPSHOTS = 16  # about 100 MB each


def is_whole(folder: Path) -> bool:
    """A snapshot appears under its name only when it is complete."""
    return folder.is_dir()


def used(folder: Path) -> None:
    """Mark the snapshot as wanted: those that nobody has wanted for longest go first."""
    os.utime(folder)


def prepare(folder: Path, shape: Shape, uid: int) -> None:
    """The folder in which a machine is booted to be frozen: an empty memory and an empty drive. Blocks."""
    folder.mkdir(mode=0o700)
    for name, size_mb in ((MEMORY, shape.memory_mb), (DRIVE, shape.disk_mb), (DEVICES, 0), (CONSOLE, 0)):
        with (folder / name).open("wb") as file:
            file.truncate(size_mb << 20)
            os.fchmod(file.fileno(), 0o600)
            os.fchown(file.fileno(), uid, uid)
    _format(folder / DRIVE)


def outfit(snapshot: Snapshot, folder: Path, uid: int, made_of: Made) -> None:
    """A machine's folder, with its own copy of the snapshot's drive, and with what it shares with others. Blocks.

    Memory and root are there by names of its own: snapshots are pruned and images replaced, and it outlives both.
    """
    folder.mkdir(mode=0o700)
    for name in (MEMORY, ROOT):
        sparse.share(snapshot.folder / name, folder / name)
    sparse.clone(snapshot.folder / DRIVE, folder / DRIVE, mode=0o600, uid=uid)
    made_of.write(folder)


def _format(drive: Path) -> None:
    """An empty ext4. Nothing is written that a clone would have to copy and could do without.

    It has no journal: that would mend the file system of a machine that lost its memory, and such a machine is gone.
    """
    options = "lazy_itable_init=1,nodiscard,root_owner=0:0"
    argv = ["mkfs.ext4", "-q", "-F", "-L", "warren-drive", "-m", "0", "-O", "^has_journal", "-E", options, str(drive)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineError("formatting", str(drive), hint=done.stderr.strip())


async def freeze(control: Qmp, devices_fd: int) -> None:
    """Stop the machine and write its devices' state. Its memory and drive are in their files already."""
    async with asyncio.timeout(FREEZE_LIMIT_S):
        await control.run("stop")
        # Despite its name it has nothing to do with Xen: it writes the devices' state without the memory.
        await control.run("xen-save-devices-state", filename=f"/proc/self/fd/{devices_fd}")


def keep(folder: Path, snapshot: Snapshot) -> None:
    """Put the frozen machine's files under the snapshot's name: all of them, on disk, or nothing. Blocks."""
    making = snapshot.folder.with_name(f".{snapshot.folder.name}")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(mode=0o700)
    (folder / MEMORY).rename(making / MEMORY)
    (folder / DEVICES).rename(making / DEVICES)
    sparse.clone(folder / DRIVE, making / DRIVE, mode=0o600, uid=0)
    for path in making.iterdir():
        os.chown(path, 0, 0)
    # The image may be on another file system. Here it costs one copy for all machines, and they need only link.
    sparse.share(snapshot.image.rootfs, making / ROOT)
    for path in (*making.iterdir(), making):
        sparse.sync(path)
    making.rename(snapshot.folder)
    _prune(snapshot.folder.parent)


def _prune(folder: Path) -> None:
    """Every combination of sizes that is asked for makes a snapshot; only the ones wanted last are kept."""
    by_use = sorted(
        (path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda p: p.stat().st_mtime
    )
    for path in by_use[:-MOST_SNAPSHOTS]:
        shutil.rmtree(path, ignore_errors=True)
