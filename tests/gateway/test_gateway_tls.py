"""Between machines everything is TLS: hosts and a gateway with certificates that `pooldctl pki` made."""

import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tests.gateway.cluster import EVERYTHING, ROOT, Cluster, Program, alive_in, ask, clustered, wait_for


def pki(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "poold.ctl", "pki", *map(str, words)], cwd=ROOT, check=True, timeout=60)


def add_host(cluster: Cluster, name: str, **variables: str) -> None:
    folder = cluster.folder
    pki("issue", folder / "ca", "host", name, "--address", "127.0.0.1", "--out", folder / f"{name}-pki")
    cluster.add_host(name, POOLD_PKI=str(folder / f"{name}-pki"), **variables)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with clustered() as found:
        folder = found.folder
        pki("init", folder / "ca")
        for name in ("host-0", "host-1"):
            add_host(found, name)
        pki("issue", folder / "ca", "gateway", "front", "--out", folder / "gateway-pki")
        found.add_gateway(GATEWAY_PKI=str(folder / "gateway-pki"))
        found.gateways[0].wait_until("/metrics", lambda reply: alive_in(reply) == 2)
        yield found


def test_a_gateway_and_its_hosts_speak_tls_and_take_renewed_certificates_without_a_restart(cluster: Cluster) -> None:
    gateway = cluster.gateways[0]
    key = cluster.key("red", scopes=EVERYTHING)
    hosts = ask(gateway.port, "GET", "/v1/hosts", key=key).json["hosts"]
    assert all(host["address"].startswith("https://") for host in hosts)
    path = ask(gateway.port, "POST", "/v1/sandboxes", {}, key=key).headers["location"]
    assert ask(gateway.port, "POST", f"{path}/exec", {"cmd": "echo hi"}, key=key).json["stdout"] == "hi\n"
    attach_directly(gateway.port, key, path, cluster.folder / "ca" / "ca.pem")
    pki("renew", cluster.folder / "gateway-pki", "--ca", cluster.folder / "ca")
    wait_for(lambda: "new certificates are in use" in gateway.told(), "the new certificate", gateway.told)
    assert ask(gateway.port, "GET", path, key=key).json["state"] == "running"


def test_a_host_that_names_anothers_address_gets_no_ids_and_costs_nobody_theirs(cluster: Cluster) -> None:
    first = cluster.gateways[0]
    key = cluster.key("red", scopes=EVERYTHING)
    paths = [made(first, key) for _ in range(4)]
    add_host(cluster, "host-2", POOLD_ADVERTISE=f"https://127.0.0.1:{cluster.hosts['host-0'].port}")
    second = cluster.add_gateway(GATEWAY_PKI=first.environment["GATEWAY_PKI"])  # it remembers nothing
    for gateway in (first, second):
        wait_for(lambda gateway=gateway: failures_of(gateway, key, "host-2") == 3, "the wrong host", gateway.told)
        log = gateway.log.read_text()
        assert '"expected":"host host-2","found":"host host-0"' in log.replace(": ", ":").replace(", ", ",")
        assert alive_in(ask(gateway.port, "GET", "/metrics")) == 2
    paths += [made(second, key) for _ in range(4)]
    for gateway in (first, second):
        assert [ask(gateway.port, "GET", path, key=key).status for path in paths] == [200] * len(paths)
        unknown = ask(gateway.port, "GET", "/v1/sandboxes/sb-aaaaaaaaaaaaaaaa", key=key)
        assert (unknown.status, unknown.code) == (503, "host_unreachable"), "host-2 might have it"


def made(gateway: Program, key: str) -> str:
    reply = ask(gateway.port, "POST", "/v1/sandboxes", {}, key=key)
    assert reply.status == 201, reply
    return reply.headers["location"]


def failures_of(gateway: Program, key: str, name: str) -> int:
    hosts = ask(gateway.port, "GET", "/v1/hosts", key=key).json["hosts"]
    return next((host["failures"] for host in hosts if host["name"] == name), 0)


def attach_directly(port: int, key: str, path: str, ca: Path) -> None:
    """The client has no certificate: its ticket is all that it needs."""
    attach = ask(port, "POST", f"{path}/attach", key=key).json
    assert attach["url"].startswith("wss://")
    context = ssl.create_default_context(cafile=str(ca))
    with connect(attach["url"], ssl=context, additional_headers={"Warren-Ticket": attach["ticket"]}) as terminal:
        assert '"start"' in str(terminal.recv(30))
