"""Real namespaces: these tests need root, and each leaves the host as it found it."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")


def _seen_on_the_host(run_dir: Path) -> dict[str, object]:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "taps": "tap0" in subprocess.check_output(["ip", "-o", "link"], text=True),
        "mounts": [line for line in mounts if str(run_dir) in line],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": len(os.listdir("/proc/self/fd")),
        "namespace": os.readlink("/proc/self/ns/net"),
    }


@pytest.fixture(autouse=True)
def _host_as_found(_root: None, run_dir: Path) -> Iterator[None]:
    before = _seen_on_the_host(run_dir)
    yield
    assert _seen_on_the_host(run_dir) == before


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"
