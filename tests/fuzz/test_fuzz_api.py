"""Whatever the document of the API allows or forbids is asked of a real gateway, a real host and real machines.

`make test` does this for a minute, `make test-fuzz` for five, WARREN_FUZZ_S says how long otherwise.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.keys import Pools, key_id
from tests.bench.host import IMAGES, ROOT
from tests.gateway.cluster import EVERYTHING, Cluster, ask, open_cluster, wait_for

SECONDS = int(os.environ.get("WARREN_FUZZ_S", "60"))
HERE = Path(__file__).parent
SLOTS = 8
BASE_UID = 320_000  # nobody else's
# Seven machines of the usual shape: two that the fuzzer keeps, two that it has just made, and three of tasks.
POOLS = Pools(vcpus=7, memory_mb=7 * 256, disk_mb=1 << 16)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A gateway before one host with microVMs. Random commands must not run on this machine itself."""
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86_64 is not installed")
    run_dir = tempfile.mkdtemp(prefix="warren-fuzz-", dir="/run")
    variables = {
        "POOLD_ENGINE": "qemu",
        "POOLD_IMAGES": str(IMAGES),
        "POOLD_POOL": "minimal=2-2",
        "POOLD_DEFAULT_IMAGE": "minimal",
        "POOLD_SLOTS": str(SLOTS),
        "POOLD_BASE_UID": str(BASE_UID),
        "POOLD_RUN_DIR": run_dir,
        "POOLD_CGROUP": f"warren-fuzz-{os.getpid()}",
    }
    try:
        with open_cluster(1, 1, **variables) as cluster:
            yield cluster
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)


def test_no_request_finds_a_reply_that_the_document_does_not_have(cluster: Cluster) -> None:
    gateway = cluster.gateways[0]
    secret = cluster.key("fuzz", pools=POOLS, scopes=EVERYTHING)
    wait_for(lambda: ask(gateway.port, "GET", "/v1/keys", key=secret).status == 200, "the key is known")
    first = ask(gateway.port, "POST", "/v1/sandboxes", key=secret)
    assert first.status == 201, first
    url = f"http://127.0.0.1:{gateway.port}"
    fuzzed = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")),
            *("run", f"{url}/openapi.json", "--max-time", str(SECONDS), "-H", f"Authorization: Bearer {secret}"),
            *("--phases", "examples,coverage,fuzzing,stateful", "--continue-on-failure", "--no-color"),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "tests.fuzz.fuzz_hooks",
            "PYTHONPATH": str(ROOT),
            "WARREN_FUZZ_URL": url,
            "WARREN_FUZZ_SANDBOX": first.json["id"],
            "WARREN_FUZZ_KEY": secret,
            "WARREN_FUZZ_KEY_ID": key_id(secret),
        },
        capture_output=True,
        text=True,
        timeout=SECONDS + 300,
        check=False,
    )
    said = fuzzed.stdout + fuzzed.stderr
    print(said)
    assert fuzzed.returncode == 0, said[-20_000:]
    for program in (gateway, *cluster.hosts.values()):
        assert "unforeseen" not in program.log.read_text(errors="replace"), program.told()
