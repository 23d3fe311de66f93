"""What the operator's document tells to type for two machines works, here on two addresses of loopback."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from poold.devstore import BUCKET
from tests.gateway.cluster import LIMIT_S, ROOT, wait_for
from tests.ports import free_port
from tests.s3server import running_s3

SECTION = re.compile(r"^## Two machines$(.*?)^## ", re.MULTILINE | re.DOTALL)
LISTED = re.compile(r"`(GATEWAY_HOSTS=[^`]+)`")
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = {"pooldctl": "poold.ctl", "poold": "poold", "gateway": "gateway", "warren": "warren.cli"}


BUCKETS, FOLDERS, LISTS = "a bucket", "a folder", "a list of hosts"  # what gateway and host have in common
STORE = "s3://acme-warren/c1"


@pytest.fixture
def folder() -> Iterator[Path]:
    """With the commands in it, and room for what the document calls /root, /etc and /srv."""
    folder = Path(tempfile.mkdtemp(prefix="warren-two-"))
    for name, module in COMMANDS.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (folder / name).chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def aws(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both machines have AWS's own settings. Sandboxes outlive their daemon, and are ended while the store is there."""
    with running_s3() as server:
        for name, value in server.client().items():
            monkeypatch.setenv(name, value)
        yield
        if (folder / "state").is_dir():
            stop = [sys.executable, "-m", "poold", "--stop-all"]
            subprocess.run(stop, env=environment(folder), capture_output=True, timeout=LIMIT_S, check=True)


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POOLD_", "GATEWAY_", "WARREN_"))}
    return {
        **kept,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'guest'}:{ROOT / 'sdk' / 'python'}",
        "POOLD_ENGINE": "local",
        "POOLD_POOL": "host=0-2",
        "POOLD_STATE_DIR": str(folder / "state"),
        "POOLD_RUN_DIR": str(folder / "run"),
        "POOLD_MIN_MEMORY_MB": "1",
        "POOLD_MIN_DISK_MB": "1",
    }


def blocks(folder: Path) -> list[str]:
    """For the authority, the gateway, the host and a client, and the setting that does without what they share.

    With places and ports that are ours.
    """
    section = SECTION.search((ROOT / "docs" / "OPERATING.md").read_text())
    assert section is not None
    found = BLOCK.findall(section[1]) + LISTED.findall(section[1])
    for number, pki in ((1, "front"), (2, "two")):
        found[number] = found[number].replace("/etc/warren/pki", f"{folder}/root/pki-{pki}")
    ours = {"/root/": f"{folder}/root/", "/srv/": f"{folder}/srv/", "10.0.0.1": "127.0.0.1", "10.0.0.2": "127.0.0.2",
            ":8443": f":{free_port()}", ":7070": f":{free_port()}", "acme-warren": BUCKET}  # fmt: skip
    pattern = re.compile("|".join(rf"(?<!{re.escape(str(folder))}){re.escape(name)}" for name in ours))
    return [pattern.sub(lambda match: ours[match[0]], block) for block in found]


@contextlib.contextmanager
def running(folder: Path, name: str, commands: str) -> Iterator[Path]:
    """Where they write during the block."""
    said = folder / f"{name}.out"
    with said.open("wb") as out, (folder / f"{name}.log").open("wb") as log:
        argv = ["bash", "-ec", commands]
        process = subprocess.Popen(argv, cwd=folder, env=environment(folder), stdout=out, stderr=log)
    try:
        yield said
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize("what", [BUCKETS, FOLDERS, LISTS])
def test_the_walk_through_for_two_machines_works(folder: Path, what: str) -> None:
    (folder / "root").mkdir()
    authority, gateway, host, client, listed = blocks(folder)
    argv = ["bash", "-ec", authority]
    subprocess.run(argv, cwd=folder, env=environment(folder), check=True, capture_output=True, timeout=LIMIT_S)
    assert gateway.count("keys create --registry") == 1
    gateway = gateway.replace("keys create", "keys create --scope sandboxes --scope admin")
    host = "".join(line for line in host.splitlines(True) if "image build" not in line)  # this engine has none
    store, place = STORE.replace("acme-warren", BUCKET), f"{folder}/srv/warren"
    assert store in gateway
    assert store in host
    if what == FOLDERS:
        gateway = f"mkdir -p {place}/registry\n" + gateway.replace(store, place)
        host = f"mkdir -p {place}/registry\n" + host.replace(store, place)
    if what == LISTS:
        gateway, host = f"export {listed}\n{gateway}", re.sub(r" POOLD_STORE=\S+", "", host)

    def told() -> str:
        return "".join(path.read_text() for path in folder.glob("*.log"))[-4000:]

    with running(folder, "gateway", gateway) as said, running(folder, "host", host):
        wait_for(lambda: "wrn_" in said.read_text(), "the key", told)
        commands = client.replace("wrn_…", said.read_text().split()[-1])

        def ask() -> "subprocess.CompletedProcess[str]":
            argv = ["bash", "-ec", commands]
            return subprocess.run(
                argv, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=LIMIT_S, check=False
            )

        wait_for(lambda: (done := ask()).returncode == 0 and "sb-" in done.stdout, "a sandbox", told)
