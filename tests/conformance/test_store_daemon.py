"""A host with a store: poold as a process, on the engine that needs no machines."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from poold.store.opening import CLUSTER_KEY
from tests.bench.host import ROOT, UnixConnection, open_host
from tests.conformance.stores import Bench, keys_of

LIMIT_S = 120


@pytest.fixture(autouse=True)
def _as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("the folder for the sockets is made in /run")


def _told(socket: Path, path: str) -> Any:
    connection = UnixConnection(socket, timeout=60)
    try:
        connection.request("GET", path)
        data = connection.getresponse().read()
        return data.decode() if path == "/metrics" else orjson.loads(data)
    finally:
        connection.close()


async def test_a_host_says_what_it_shares(shelf: Bench) -> None:
    local = {"POOLD_ENGINE": "local", "POOLD_DEFAULT_IMAGE": "host"}
    with open_host(pool="", POOLD_STORE=str(shelf.where), **local) as host:
        host.wait_until_serving()
        cluster = orjson.loads((await shelf.store.get(CLUSTER_KEY)).data)["id"]
        assert _told(host.socket, "/admin/status")["store"] == {"place": str(shelf.where), "cluster": cluster}
        assert _told(host.socket, "/readyz") == {"ready": True, "store": str(shelf.where), "cluster": cluster}
        assert 'poold_store_requests_total{outcome="answered"}' in _told(host.socket, "/metrics")
        shown = subprocess.run(
            [sys.executable, "-m", "poold.ctl", "status"],
            env={**os.environ, "POOLD_SOCKET": str(host.socket)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"{shelf.where}, cluster {cluster}" in shown.stdout
        assert "AWS_SECRET_ACCESS_KEY" not in host.log()
        assert os.environ.get("AWS_SECRET_ACCESS_KEY", "no such key") not in host.log()


async def test_a_host_does_not_start_on_another_clusters_store(shelf: Bench, tmp_path: Path) -> None:
    await shelf.store.put(CLUSTER_KEY, orjson.dumps({"version": 1, "id": f"cl-{'0' * 32}"}))
    state = tmp_path / "state"
    state.mkdir()
    (state / "cluster.json").write_bytes(orjson.dumps({"version": 1, "id": f"cl-{'1' * 32}"}))
    done = subprocess.run(
        [sys.executable, "-m", "poold"],
        cwd=ROOT,
        env={
            **os.environ,
            "POOLD_ENGINE": "local",
            "POOLD_STORE": str(shelf.where),
            "POOLD_STATE_DIR": str(state),
            "POOLD_RUN_DIR": str(tmp_path / "run"),
            "POOLD_LISTEN": "127.0.0.1:1",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert f"POOLD_STORE={shelf.where} is of the cluster cl-000" in done.stderr
    assert "Traceback" not in done.stderr
    assert await keys_of(shelf.store) == [CLUSTER_KEY]
