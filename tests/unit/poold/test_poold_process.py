"""The daemon as a process, on the engine that needs no machines: its port, its record, and what is left of both."""

import json
import os
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.hosts import Host as Record
from tests.bench.host import Host, open_host
from tests.unit.poold.poold_certificates import Authority
from tests.vm.client import until

LIMIT_S = 30.0


@pytest.fixture(autouse=True)
def _as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("the folder for the sockets is made in /run")


def open_local(**variables: str) -> Any:
    return open_host(pool="", POOLD_ENGINE="local", POOLD_DEFAULT_IMAGE="host", **variables)


def read(path: Path) -> Callable[[], Record | None]:
    return lambda: Record.decode(path.read_bytes()) if path.exists() else None


def test_the_record_appears_beats_and_says_at_the_end_that_the_host_has_left(tmp_path: Path) -> None:
    record = read(tmp_path / "hosts" / "bench.json")
    with open_local(POOLD_REGISTRY=str(tmp_path)) as host:
        first = until(record, limit_s=LIMIT_S)
        assert first is not None
        assert (first.name, first.address, first.ready) == ("bench", f"http://127.0.0.1:{host.port}", True)
        until(lambda: (record() or first).beat > first.beat, limit_s=LIMIT_S)
        status, told = host.call("GET", "/v1/host")
        assert (status, told["name"]) == (200, "bench")
    last = record()
    assert last is not None
    assert not last.ready


def test_a_host_with_certificates_speaks_tls_to_a_gateway(tmp_path: Path) -> None:
    authority, pki = Authority(), tmp_path / "pki"
    pki.mkdir()
    authority.write_host(pki, "bench")
    with open_local(POOLD_PKI=str(pki), POOLD_REGISTRY=str(tmp_path)) as host:
        (pki / "tickets.pub").write_bytes(host.gateway.public)  # taken up while it runs
        record = until(read(tmp_path / "hosts" / "bench.json"), limit_s=LIMIT_S)
        assert record is not None
        assert record.address == f"https://127.0.0.1:{host.port}"
        tls = authority.client(tmp_path, "spiffe://warren/gateway/one")
        told = until(lambda: _asked(host, tls), limit_s=LIMIT_S)
        assert told["name"] == "bench"


def _asked(host: Host, tls: ssl.SSLContext) -> dict[str, Any] | None:
    headers = host.gateway.headers("GET", "/v1/host")
    asked = urllib.request.Request(f"https://127.0.0.1:{host.port}/v1/host", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
    try:
        with opener.open(asked, timeout=LIMIT_S) as reply:
            told: dict[str, Any] = json.load(reply)
            return told
    except OSError:
        return None
