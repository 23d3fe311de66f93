"""The root file system laid out as a folder, and made the same whoever lays it out, and when."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from images.programs import run

# The guest has an environment of its own, so that nothing done to the image's Python can reach it.
GUEST_HOME = "/opt/warren-guest"

# The same in every machine, as every machine has the same address and the same neighbour.
_FILES = {
    "etc/hostname": "warren\n",
    "etc/hosts": "127.0.0.1 localhost warren\n::1 localhost ip6-localhost ip6-loopback\n",
    "etc/resolv.conf": "nameserver 172.16.0.1\n",
    # Empty, not absent: each machine is given its own when it is claimed.
    "etc/machine-id": "",
}

# Made while packages were installed, of no use in a machine, and different each time.
_LITTER = (
    "etc/.pwd.lock",
    "etc/*-",
    "etc/ssh/ssh_host_*",
    "run/*",
    "tmp/*",
    "var/cache/apt/*",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/*",
    "var/lib/apt/lists/*",
    "var/lib/dbus/machine-id",
    "var/lib/dpkg/*-old",
    "var/log/*.log",
    "var/log/apt/*",
    "var/tmp/*",
)


def shadow(source: Path, tree: Path) -> None:
    """Make `tree` a copy of `source` that files can be added to: its folders are its own, its files are shared.

    The files that it shares must not be changed. In exchange, this takes a second and no room.
    """
    run(["cp", "--archive", "--link", source, tree])


def settle(tree: Path) -> None:
    """Remove what came from the building host or from the building, and write what every machine has."""
    for pattern in _LITTER:
        for path in tree.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    for name, text in _FILES.items():
        path = tree / name
        # It may be a link, to a place on the host.
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o644)
    passwords = tree / "etc/shadow"
    passwords.write_text("".join(undated(line) for line in passwords.read_text().splitlines(keepends=True)))


def undated(line: str) -> str:
    """Return a line of /etc/shadow without the day on which the password was last set: it was the day of the build."""
    name, password, _, *rest = line.split(":")
    return ":".join([name, password, "", *rest])


def fix_times(tree: Path, *, building_since: int) -> None:
    """Give all that the build itself made the time of the newest file that came in a package."""
    times = {path: path.lstat().st_mtime for path in _all(tree)}
    newest = int(max((time for time in times.values() if time < building_since), default=0))
    guest = tree / GUEST_HOME.lstrip("/")
    for path, time in times.items():
        # Compiled Python knows its source by the source's time, except the guest's, which is compiled not to look.
        is_known_by_time = path.suffix == ".py" and not path.is_relative_to(guest)
        if time > newest and not is_known_by_time:
            os.utime(path, (newest, newest), follow_symlinks=False)


def _all(tree: Path) -> Iterator[Path]:
    yield tree
    yield from tree.rglob("*")
