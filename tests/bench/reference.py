"""What a claim is compared with: `crun run` and `bwrap` of `true` in the root file system of the same image.

Runs as a process of its own, in a mount namespace where cgroup v2 is hidden if the host has a hybrid layout:
crun refuses that. Each line `crun` or `bwrap` on standard input is answered with the milliseconds that it took.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

UNIFIED = Path("/sys/fs/cgroup/unified")


def bundle(folder: Path, rootfs: Path) -> None:
    """An OCI bundle whose process is `true`, on a read-only root: the least that crun can be asked for."""
    subprocess.run(["crun", "spec"], cwd=folder, check=True)
    spec = json.loads((folder / "config.json").read_text())
    spec["process"].update(terminal=False, args=["/bin/true"])
    spec["root"] = {"path": str(rootfs), "readonly": True}
    (folder / "config.json").write_text(json.dumps(spec))


def timed(argv: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def main() -> None:
    image = sys.argv[1]
    if UNIFIED.is_dir():
        subprocess.run(["umount", "-l", str(UNIFIED)], check=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rootfs = folder / "rootfs"
        rootfs.mkdir()
        subprocess.run(["mount", "-o", "loop,ro", image, str(rootfs)], check=True)
        try:
            bundle(folder, rootfs)
            commands = {
                "crun": ["crun", "--root", str(folder / "state"), "run", "--bundle", str(folder), "reference"],
                "bwrap": [
                    *("bwrap", "--ro-bind", str(rootfs), "/", "--proc", "/proc", "--dev", "/dev"),
                    *("--unshare-all", "--die-with-parent", "/bin/true"),
                ],
            }
            for line in sys.stdin:
                print(timed(commands[line.strip()]), flush=True)
        finally:
            subprocess.run(["umount", str(rootfs)], check=True)


if __name__ == "__main__":
    main()
