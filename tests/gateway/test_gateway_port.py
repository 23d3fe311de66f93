"""A port that somebody has: the second one is told so, in one line that names the variable."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.gateway.cluster import ROOT, Cluster, ask, clustered, wait_for, write_pki
from tests.ports import free_port


def second(environment: dict[str, str], *, workers: int) -> "subprocess.CompletedProcess[str]":
    environment = {**environment, "GATEWAY_WORKERS": str(workers)}
    argv = [sys.executable, "-m", "gateway"]
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_gateway_on_a_port_is_told_that_it_is_taken(workers: int) -> None:
    with clustered() as cluster:
        write_pki(cluster.folder / "pki")
        first = cluster.add_gateway(GATEWAY_WORKERS=str(workers))
        wait_for(lambda: ask(first.port, "GET", "/healthz").status == 200, "the first", first.told)
        for count in (1, 2):
            told = second(first.environment, workers=count)
            assert told.returncode == 2, told
            assert told.stderr.splitlines()[-1] == (
                f"gateway: GATEWAY_LISTEN=127.0.0.1:{first.port} cannot be listened on: "
                "Address already in use; set it to another address or port"
            )
            assert "Traceback" not in told.stderr
        assert ask(first.port, "GET", "/healthz").status == 200


def test_a_gateway_that_starts_anew_has_its_port_again_at_once() -> None:
    with clustered() as cluster:
        write_pki(cluster.folder / "pki")
        gateway = cluster.add_gateway()
        for _ in range(3):
            _is_served(cluster)
            gateway.kill()
            gateway.start()
        _is_served(cluster)


def _is_served(cluster: Cluster) -> None:
    (gateway,) = cluster.gateways
    wait_for(lambda: ask(gateway.port, "GET", "/healthz").status == 200, "the gateway", gateway.told)


def test_a_host_whose_port_is_taken_says_so_and_starts_nothing() -> None:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="warren-port-") as name, socket.create_server(("127.0.0.1", port)):
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'guest'}",
            "POOLD_ENGINE": "local",
            "POOLD_POOL": "host=0-2",
            "POOLD_LISTEN": f"127.0.0.1:{port}",
            "POOLD_STATE_DIR": f"{name}/state",
            "POOLD_RUN_DIR": f"{name}/run",
        }
        argv = [sys.executable, "-m", "poold"]
        told = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert told.returncode == 1
        assert told.stderr.splitlines()[-1] == (
            f"poold: POOLD_LISTEN=127.0.0.1:{port} cannot be listened on: "
            "Address already in use; set it to another address or port"
        )
        assert not (Path(name) / "state").exists()
