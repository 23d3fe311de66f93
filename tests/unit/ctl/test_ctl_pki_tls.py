"""What `pooldctl pki` issues, in real TLS: OpenSSL's, and the rustls of Granian."""

import contextlib
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.identity import Identity, Kind
from tests.unit.ctl.ctl_cluster import LIMIT_S, Cluster, context_of, handshake


@pytest.fixture
def cluster(folder: Path) -> Cluster:
    return Cluster(folder)


def test_a_gateway_and_a_host_know_each_other(cluster: Cluster) -> None:
    server = context_of(cluster.host, Kind.HOST, ssl.Purpose.CLIENT_AUTH)
    client = context_of(cluster.gateway, Kind.GATEWAY, ssl.Purpose.SERVER_AUTH)
    for name in ("127.0.0.1", "a.example.org"):
        assert handshake(server, client, name) == (Identity(Kind.HOST, "a"), Identity(Kind.GATEWAY, "g"))


def test_another_address_than_the_certificates_is_refused(cluster: Cluster) -> None:
    server = context_of(cluster.host, Kind.HOST, ssl.Purpose.CLIENT_AUTH)
    client = context_of(cluster.gateway, Kind.GATEWAY, ssl.Purpose.SERVER_AUTH)
    for name in ("127.0.0.2", "b.example.org"):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(server, client, name)


def test_neither_side_takes_a_certificate_for_the_other_side(cluster: Cluster) -> None:
    """A host's key does not open other hosts, and a gateway's cannot play a host."""
    server = context_of(cluster.host, Kind.HOST, ssl.Purpose.CLIENT_AUTH)
    with pytest.raises(OSError, match=r"(?i)alert|reset|eof|broken pipe"):
        handshake(server, context_of(cluster.host, Kind.HOST, ssl.Purpose.SERVER_AUTH))
    client = context_of(cluster.gateway, Kind.GATEWAY, ssl.Purpose.SERVER_AUTH)
    client.check_hostname = False
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(context_of(cluster.gateway, Kind.GATEWAY, ssl.Purpose.CLIENT_AUTH), client)


def test_another_clusters_certificates_are_refused_on_both_sides(cluster: Cluster, folder: Path) -> None:
    (folder / "other").mkdir()
    other = Cluster(folder / "other")
    server = context_of(cluster.host, Kind.HOST, ssl.Purpose.CLIENT_AUTH)
    strange = context_of(other.gateway, Kind.GATEWAY, ssl.Purpose.SERVER_AUTH)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, strange)
    strange.load_verify_locations(cluster.ca / "ca.pem")  # now it is content with the host
    with pytest.raises(OSError, match=r"(?i)alert|reset|eof|broken pipe"):
        handshake(server, strange)


def test_a_gateway_with_addresses_may_serve_clients_of_its_own(cluster: Cluster, folder: Path) -> None:
    addresses = ("example.org", "*.example.org")
    cluster.do("pki", "issue", cluster.ca, "gateway", "front", "--address", *addresses, "--out", folder / "front")
    server = context_of(folder / "front", Kind.GATEWAY, ssl.Purpose.CLIENT_AUTH)
    server.verify_mode = ssl.CERT_NONE
    client = ssl.create_default_context(cafile=str(cluster.ca / "ca.pem"))
    assert handshake(server, client, "8000-sb-x.example.org")[0] == Identity(Kind.GATEWAY, "front")


def test_granian_takes_the_keys_and_asks_for_the_certificates(cluster: Cluster, folder: Path) -> None:
    """Its TLS is not OpenSSL's: rustls."""
    client = context_of(cluster.gateway, Kind.GATEWAY, ssl.Purpose.SERVER_AUTH)
    nobody = ssl.create_default_context(cafile=str(cluster.ca / "ca.pem"))
    with granian(cluster.host) as port:
        assert b" 200 " in wait_until_answered(port, client)
        with pytest.raises(OSError, match=r"(?i)certificate.required|reset|eof"):
            ask(port, nobody)


APP = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"yes"})

if __name__ == "__main__":
    import sys
    from granian import Granian
    from pathlib import Path
    from granian.constants import Interfaces
    folder = Path(sys.argv[2])
    Granian(__file__ + ":app", "127.0.0.1", int(sys.argv[1]), interface=Interfaces.ASGINL, ssl_cert=folder / "host.pem",
            ssl_key=folder / "host.key", ssl_ca=folder / "ca.pem", ssl_client_verify=True, log_enabled=False).serve()
"""


@contextlib.contextmanager
def granian(folder: Path) -> Iterator[int]:
    program = folder.parent / "served.py"
    program.write_text(APP)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, str(program), str(port), str(folder)]) as process:
        try:
            yield port
        finally:
            process.terminate()


def ask(port: int, context: ssl.SSLContext) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connected,
    ):
        connected.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        if not (answer := connected.recv(4096)):
            raise EOFError("unexpected eof")
        return answer


def wait_until_answered(port: int, context: ssl.SSLContext) -> bytes:
    deadline = threading.Event()
    timer = threading.Timer(LIMIT_S, deadline.set)
    timer.start()
    try:
        while not deadline.wait(0.05):
            with contextlib.suppress(ConnectionRefusedError):
                return ask(port, context)
    finally:
        timer.cancel()
    raise TimeoutError(f"nobody listens on {port}")
