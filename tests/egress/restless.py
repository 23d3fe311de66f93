"""An image whose guest tries to get out from its first moment on, and never stops.

Machines that are made of it are restored from a snapshot in which the loop runs: it goes on with the first instruction
that a clone executes.
"""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.egress.hellos import hello

NAME = "restless"
PACKAGES = "/opt/warren-guest/lib/python3.11/site-packages"
# Read by the guest's own Python when it starts, as the machine's first process.
START = "import os; os.getpid() == 1 and os.fork() == 0 and os.execv('/usr/bin/python3', ['python3', '{loop}'])\n"
LOOP = """
import json, socket, time

def knock(address, port, words):
    try:
        with socket.create_connection((address, port), 1) as sock:
            sock.settimeout(1)
            for word in words:
                sock.sendall(word.encode("latin-1"))
                sock.recv(4096)
    except OSError as error:
        if error.errno == 101:  # there is no network yet
            time.sleep(0.05)

while True:
    for name, address, hello in json.loads(TARGETS):
        request = "GET / HTTP/1.1\\r\\nHost: " + name + "\\r\\nConnection: close\\r\\n\\r\\n"
        knock(address, 80, [request])
        knock(address, 443, [hello])
        knock(address, 22, [""])
        knock("172.16.0.1", 3128, [request.replace("/", "http://" + name + "/", 1)])
        knock("172.16.0.1", 3128, ["CONNECT " + name + ":443 HTTP/1.1\\r\\nHost: " + name + ":443\\r\\n\\r\\n", hello])
        try:
            socket.getaddrinfo(name, 80, socket.AF_INET)
        except OSError:
            continue
        knock(name, 80, [request])
        knock(name, 443, [hello])
        knock(name, 22, [""])
"""


def make_restless(images: Path, folder: Path, targets: Sequence[tuple[str, str]]) -> Path:
    """A folder of images with one, made from `minimal`, that tries names and addresses without end."""
    base = Path(os.path.realpath(images / "minimal"))
    manifest = json.loads((base / "manifest.json").read_text())
    key = hashlib.sha256(f"{manifest['key']} {LOOP} {START} {targets}".encode()).hexdigest()
    made = folder / f"{NAME}-{key[:12]}"
    made.mkdir(parents=True)
    for name in (manifest["kernel"], manifest["initramfs"]):
        (made / name).symlink_to(base / name)
    rootfs = made / manifest["rootfs"]
    shutil.copyfile(base / manifest["rootfs"], rootfs)
    tried = [(name, address, hello(name).decode("latin-1")) for name, address in targets]
    program = f"TARGETS = {json.dumps(json.dumps(tried))}\n{LOOP}"
    _put(rootfs, {f"{PACKAGES}/restless.py": program, f"{PACKAGES}/restless.pth": _start()})
    (made / "manifest.json").write_text(json.dumps({**manifest, "name": NAME, "key": key}))
    (folder / NAME).symlink_to(made.name)
    return folder


def _start() -> str:
    return START.format(loop=f"{PACKAGES}/restless.py")


def _put(rootfs: Path, files: dict[str, str]) -> None:
    """Write files into a file system that nobody has mounted."""
    with rootfs.open("ab") as image:
        image.truncate(rootfs.stat().st_size + (8 << 20))  # it has no room of its own
    _run("e2fsck", "-fy", str(rootfs), fine=(0, 1))
    _run("resize2fs", str(rootfs))
    for path, text in files.items():
        source = rootfs.with_name("source")
        source.write_text(text)
        _run("debugfs", "-w", "-R", f"write {source} {path}", str(rootfs))
        source.unlink()
    found = _run("debugfs", "-R", f"ls {PACKAGES}", str(rootfs))
    assert all(Path(path).name in found for path in files), found


def _run(*argv: str, fine: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode in fine, f"{' '.join(argv)}: {done.stdout}{done.stderr}"
    return done.stdout
