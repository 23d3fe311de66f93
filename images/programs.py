"""The door to other programs: are they here, run them, and say what went wrong."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from images.errors import ImageError

# Every program that a build starts, and the Debian package that has it.
PACKAGES = {
    "apt-cache": "apt",
    "apt-get": "apt",
    "chroot": "coreutils",
    "cp": "coreutils",
    "debugfs": "e2fsprogs",
    "dpkg-deb": "dpkg",
    "lz4": "lz4",
    "mke2fs": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "setpriv": "util-linux",
    "sync": "coreutils",
    "unshare": "util-linux",
}

# A namespace of mounts and one of processes, both gone with the program that is started in them, which is gone with us:
# however a build ends, even by SIGKILL, nothing stays mounted and nothing keeps running.
_CONTAINED = (
    "setpriv",
    "--pdeathsig=KILL",
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child=KILL",
    "--mount-proc",
)

# How much of a failed program's output is shown.
_TAIL_LINES = 15


def check_installed() -> None:
    """Raise `ImageError` naming the Debian packages of the programs that are not on this machine."""
    missing = sorted(name for name in PACKAGES if shutil.which(name, path=_search_path()) is None)
    if missing:
        packages = sorted({PACKAGES[name] for name in missing})
        raise ImageError(f"not installed: {', '.join(missing)}", hint=f"apt-get install {' '.join(packages)}")


def run(argv: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> bytes:
    """Run a program to its end and return its standard output. Raises `ImageError` with the end of what it said."""
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        # Nothing of the caller's environment but the way to programs: what we build must not depend on who builds it.
        env={"PATH": _search_path(), "LC_ALL": "C.UTF-8", "HOME": "/root", **_proxies(), **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise ImageError(f"{argv[0]} failed with status {done.returncode}:\n  " + "\n  ".join(said[-_TAIL_LINES:]))
    return done.stdout


def run_contained(argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> bytes:
    """Run a program that mounts things or starts others, like `run`; when this returns or we die, all of it is gone."""
    return run([*_CONTAINED, "--", *argv], env=env)


def _search_path() -> str:
    # A root shell reached by su may lack the sbin folders, where mke2fs and chroot live.
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def _proxies() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name.lower() in ("http_proxy", "https_proxy", "no_proxy")
    }
