"""`pooldctl pki`: certificates that TLS takes for what they are for, and folders that are whole whatever happens."""

import contextlib
import io
import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contract.identity import Identity, Kind, peer_identity
from contract.tickets import Access, BadTicket, Signer, Verifier, public_pems
from poold import files, pki
from poold.ctl import pki as commands
from poold.ctl.client import Client
from poold.ctl.context import Context
from poold.ctl.errors import CtlError
from poold.ctl.output import Output
from poold.ctl.parser import build
from tests.unit.ctl.conftest import LIMIT_S, Ctl

DAY_MS = 24 * 3600 * 1000
NOW_MS = 1_800_000_000_000
SHARED_FILES = {"ca.pem": 0o644, "tickets.pub": 0o644}
AUTHORITY_FILES = {**SHARED_FILES, "ca.key": 0o600, "tickets.key": 0o600}
HOST_FILES = {**SHARED_FILES, "host.pem": 0o644, "host.key": 0o600}
GATEWAY_FILES = {**SHARED_FILES, "gateway.pem": 0o644, "gateway.key": 0o600, "tickets.key": 0o600}


class Cluster:
    """An authority, a host and a gateway, made by the real commands in this process."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.host, self.gateway = (folder / name for name in ("ca", "a", "g"))
        self.do("pki", "init", self.ca)
        self.do("pki", "issue", self.ca, "host", "a", "--address", "127.0.0.1", "a.example.org", "--out", self.host)
        self.do("pki", "issue", self.ca, "gateway", "g", "--out", self.gateway)

    def do(self, *words: object) -> Any:
        """What the command says as JSON. Its errors are raised."""
        asked = build().parse_args([str(word) for word in words])
        said = io.StringIO()
        function = getattr(commands, asked.run.partition(".")[2])
        function(Context(asked, Client(Path("/nowhere"), 1), Output(said, as_json=True)))
        return json.loads(said.getvalue())

    def renew(self, folder: Path) -> Any:
        return self.do("pki", "renew", folder, "--ca", self.ca)

    def signer(self) -> Signer:
        return Signer((self.gateway / "tickets.key").read_bytes(), now_ms=lambda: NOW_MS, nonce=lambda: "n")

    def verifier(self) -> Verifier:
        return Verifier("a", public_pems((self.host / "tickets.pub").read_bytes()), now_ms=lambda: NOW_MS)

    def takes_tickets(self) -> bool:
        try:
            return self.verifier().verify(self.signer().sign("a", "ann", Access.READ)).owner == "ann"
        except BadTicket:
            return False


@pytest.fixture
def cluster(folder: Path) -> Cluster:
    return Cluster(folder)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def context_of(folder: Path, kind: Kind, purpose: ssl.Purpose) -> ssl.SSLContext:
    """As poold and the gateway use it: TLS 1.3, both sides shown, and what later Pythons insist on."""
    context = ssl.create_default_context(purpose, cafile=str(folder / "ca.pem"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(folder / f"{kind}.pem", folder / f"{kind}.key")
    return context


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str = "127.0.0.1"
) -> tuple[Identity | None, Identity | None]:
    """Whom the client meets, and whom the server meets."""
    near, far = socket.socketpair()
    near.settimeout(LIMIT_S)
    far.settimeout(LIMIT_S)
    met: list[Identity | None] = []

    def serve() -> None:
        with contextlib.suppress(OSError), server.wrap_socket(far, server_side=True) as accepted:
            met.append(peer_identity(accepted.getpeercert()))
            accepted.sendall(b"!")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(near, server_hostname=name) as connected:
            assert connected.recv(1) == b"!"  # in TLS 1.3 a client hears only now that its certificate was refused
            whom = peer_identity(connected.getpeercert())
    finally:
        near.close()
        thread.join(LIMIT_S)
        far.close()
    return whom, met[0]


class TestFolders:
    def test_they_have_what_daemons_need_and_keys_are_for_nobody_else(self, cluster: Cluster) -> None:
        for folder, wanted in (
            (cluster.ca, AUTHORITY_FILES),
            (cluster.host, HOST_FILES),
            (cluster.gateway, GATEWAY_FILES),
        ):
            assert modes(folder) == wanted
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            keys = [path.read_bytes() for path in folder.glob("*.key")]
            assert all(key.startswith(b"-----BEGIN PRIVATE KEY-----") for key in keys)  # PKCS#8

    def test_the_real_command_makes_them_and_says_until_when(self, ctl: Ctl, folder: Path) -> None:
        made = ctl("pki", "init", str(folder / "ca"))
        assert (made.code, made.err) == (0, "")
        assert "authority, until" in made.out
        issued = ctl("pki", "issue", str(folder / "ca"), "host", "a", "--address", "::1", "--out", str(folder / "a"))
        assert (issued.code, issued.err) == (0, "")
        assert "host a, until" in issued.out
        shown = ctl("pki", "show", str(folder / "a"))
        assert (shown.code, shown.err) == (0, "")
        assert "::1" in shown.out

    def test_a_folder_that_is_there_and_empty_is_taken(self, cluster: Cluster, folder: Path) -> None:
        (folder / "empty").mkdir(mode=0o755)
        cluster.do("pki", "issue", cluster.ca, "gateway", "g2", "--out", folder / "empty")
        assert modes(folder / "empty") == GATEWAY_FILES
        assert stat.S_IMODE((folder / "empty").stat().st_mode) == 0o700

    def test_nothing_is_overwritten(self, cluster: Cluster, folder: Path) -> None:
        (folder / "file").write_bytes(b"mine")
        (folder / "full").mkdir()
        (folder / "full" / "mine").touch()
        before = contents(cluster.ca)
        for target in (cluster.ca, folder / "file", folder / "full"):
            for words in (("init", target), ("issue", cluster.ca, "gateway", "x", "--out", target)):
                with pytest.raises(CtlError, match="nothing is overwritten"):
                    cluster.do("pki", *words)
        assert contents(cluster.ca) == before
        assert (folder / "file").read_bytes() == b"mine"
        assert sorted(path.name for path in folder.iterdir()) == ["a", "ca", "file", "full", "g"]

    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            ("issue CA host B --address b --out OUT", 2, "name: must be lower-case"),
            ("issue CA host ../b --address b --out OUT", 2, "name: must be lower-case"),
            ("issue CA host b --out OUT", 2, "at least one"),
            ("issue CA host b --address https://b:7070 --out OUT", 2, "without scheme and port"),
            ("issue CA host b --address b:7070 --out OUT", 2, "without scheme and port"),
            ("issue CA host b --address 10.0.0.256 --out OUT", 2, "without scheme and port"),
            ("issue CA host b --address *.example.org --out OUT", 2, "without scheme and port"),
            ("issue CA gateway b --address *.*.example.org --out OUT", 2, "without scheme and port"),
            ("issue CA operator b --out OUT", 2, "invalid choice"),
            ("issue CA host b --address b", 2, "--out"),
            ("issue NONE host b --address b --out OUT", 4, "there is no"),
            ("issue CA host b --address b --out NONE/OUT", 1, "there is no folder"),
            ("renew NONE --ca CA", 1, "neither host.pem nor gateway.pem"),
            ("renew CA --ca CA", 1, "neither host.pem nor gateway.pem"),
            ("rotate-tickets NONE", 4, "there is no"),
            ("show NONE", 4, "there is no"),
        ],
    )
    def test_what_cannot_be_done_is_told_and_leaves_nothing(
        self, ctl: Ctl, cluster: Cluster, words: str, code: int, said: str
    ) -> None:
        folder = cluster.ca.parent
        places = {"CA": str(cluster.ca), "OUT": str(folder / "out"), "NONE": str(folder / "none")}
        ran = ctl("pki", *[places.get(word, word.replace("NONE", places["NONE"])) for word in words.split()])
        assert (ran.code, ran.out) == (code, "")
        assert said in ran.err
        assert sorted(path.name for path in folder.iterdir()) == ["a", "ca", "g"]

    def test_a_disk_that_fails_at_any_moment_leaves_no_half_folder(
        self, cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = sorted(folder.iterdir())
        for failing in range(5):  # four files, then their folder
            with failing_sync(monkeypatch, failing), pytest.raises(CtlError, match="No space left"):
                cluster.do("pki", "issue", cluster.ca, "host", "b", "--address", "b", "--out", folder / "b")
            assert sorted(folder.iterdir()) == before


@contextlib.contextmanager
def failing_sync(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[None]:
    """The disk is full when the system is asked to write for the `after`th time."""
    real, count = os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count > after:
            raise OSError(28, "No space left on device", "disk")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        yield


class TestTls:
    def test_a_gateway_and_a_host_know_each_other(self, cluster: Cluster) -> None:
        server = context_of(cluster.host, Kind.HOST, ssl.Purpose.CLIENT_AUTH)
        client = context_of(cluster.gateway, Kind.GATEWAY, ssl.Purpose.SERVER_AUTH)
        for name in ("127.0.0.1", "a.example.org"):
            assert handshake(server, client, name) == (Identity(Kind.HOST, "a"), Identity(Kind.GATEWAY, "g"))

    def test_another_address_than_the_certificates_is_refused(self, cluster: Cluster) -> None:
        server = context_of(cluster.host, Kind.HOST, ssl.Purpose.CLIENT_AUTH)
        client = context_of(cluster.gateway, Kind.GATEWAY, ssl.Purpose.SERVER_AUTH)
        for name in ("127.0.0.2", "b.example.org"):
            with pytest.raises(ssl.SSLCertVerificationError):
                handshake(server, client, name)

    def test_neither_side_takes_a_certificate_for_the_other_side(self, cluster: Cluster) -> None:
        """A host's key does not open other hosts, and a gateway's cannot play a host."""
        server = context_of(cluster.host, Kind.HOST, ssl.Purpose.CLIENT_AUTH)
        with pytest.raises(OSError, match=r"(?i)alert|reset|eof|broken pipe"):
            handshake(server, context_of(cluster.host, Kind.HOST, ssl.Purpose.SERVER_AUTH))
        client = context_of(cluster.gateway, Kind.GATEWAY, ssl.Purpose.SERVER_AUTH)
        client.check_hostname = False
        with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
            handshake(context_of(cluster.gateway, Kind.GATEWAY, ssl.Purpose.CLIENT_AUTH), client)

    def test_another_clusters_certificates_are_refused_on_both_sides(self, cluster: Cluster, folder: Path) -> None:
        (folder / "other").mkdir()
        other = Cluster(folder / "other")
        server = context_of(cluster.host, Kind.HOST, ssl.Purpose.CLIENT_AUTH)
        strange = context_of(other.gateway, Kind.GATEWAY, ssl.Purpose.SERVER_AUTH)
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(server, strange)
        strange.load_verify_locations(cluster.ca / "ca.pem")  # now it is content with the host
        with pytest.raises(OSError, match=r"(?i)alert|reset|eof|broken pipe"):
            handshake(server, strange)

    def test_a_gateway_with_addresses_may_serve_clients_of_its_own(self, cluster: Cluster, folder: Path) -> None:
        addresses = ("example.org", "*.example.org")
        cluster.do("pki", "issue", cluster.ca, "gateway", "front", "--address", *addresses, "--out", folder / "front")
        server = context_of(folder / "front", Kind.GATEWAY, ssl.Purpose.CLIENT_AUTH)
        server.verify_mode = ssl.CERT_NONE
        client = ssl.create_default_context(cafile=str(cluster.ca / "ca.pem"))
        assert handshake(server, client, "8000-sb-x.example.org")[0] == Identity(Kind.GATEWAY, "front")

    def test_granian_takes_the_keys_and_asks_for_the_certificates(self, cluster: Cluster, folder: Path) -> None:
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


class TestRenew:
    def test_the_same_names_with_a_new_key_and_later(self, cluster: Cluster) -> None:
        before, old = pki.read((cluster.host / "host.pem").read_bytes()), contents(cluster.host)
        cluster.renew(cluster.host)
        after, new = pki.read((cluster.host / "host.pem").read_bytes()), contents(cluster.host)
        assert (after.identity, after.addresses) == (before.identity, before.addresses)
        assert after.serial != before.serial
        assert after.expires_ms >= before.expires_ms
        assert (new["host.key"], new["host.pem"]) != (old["host.key"], old["host.pem"])
        assert modes(cluster.host) == HOST_FILES
        server = context_of(cluster.host, Kind.HOST, ssl.Purpose.CLIENT_AUTH)
        assert handshake(server, context_of(cluster.gateway, Kind.GATEWAY, ssl.Purpose.SERVER_AUTH))

    def test_files_that_stay_the_same_are_not_touched(self, cluster: Cluster) -> None:
        before = {path.name: path.stat().st_ino for path in cluster.gateway.iterdir()}
        cluster.renew(cluster.gateway)
        after = {path.name: path.stat().st_ino for path in cluster.gateway.iterdir()}
        assert {name for name in after if after[name] != before[name]} == {"gateway.pem", "gateway.key"}

    def test_a_certificate_of_another_authority_is_refused(self, cluster: Cluster, folder: Path) -> None:
        (folder / "other").mkdir()
        other, before = Cluster(folder / "other"), contents(cluster.host)
        with pytest.raises(CtlError, match="not of the authority"):
            other.renew(cluster.host)
        assert contents(cluster.host) == before

    def test_a_gateways_certificate_does_not_make_a_host(self, cluster: Cluster) -> None:
        shutil.copy(cluster.gateway / "gateway.pem", cluster.host / "host.pem")
        with pytest.raises(CtlError, match="not of the authority"):
            cluster.renew(cluster.host)

    def test_one_that_fails_at_any_moment_can_be_done_again(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cluster.do("pki", "rotate-tickets", cluster.ca)
        for failing in range(6):  # tickets.pub, host.key, host.pem, and their folder after each
            with failing_sync(monkeypatch, failing), contextlib.suppress(CtlError):
                cluster.renew(cluster.host)
            assert set(modes(cluster.host)) == set(HOST_FILES)
            assert cluster.renew(cluster.host)["problems"] == []


class TestTickets:
    def test_what_the_gateways_folder_signs_the_hosts_takes(self, cluster: Cluster) -> None:
        assert cluster.takes_tickets()

    def test_a_rotation_in_the_order_that_is_told_is_never_noticed(self, cluster: Cluster) -> None:
        old = cluster.signer().sign("a", "ann", Access.READ)
        steps: list[Callable[[], object]] = [
            lambda: cluster.do("pki", "rotate-tickets", cluster.ca),
            lambda: cluster.renew(cluster.host),
            lambda: cluster.renew(cluster.gateway),
            lambda: cluster.do("pki", "rotate-tickets", cluster.ca, "--forget-old"),
        ]
        for step in steps:
            step()
            assert cluster.takes_tickets()
            assert cluster.verifier().verify(old)
        cluster.renew(cluster.host)
        assert cluster.takes_tickets()
        with pytest.raises(BadTicket, match="not signed"):
            cluster.verifier().verify(old)

    def test_a_second_rotation_waits_for_the_end_of_the_first(self, cluster: Cluster) -> None:
        cluster.do("pki", "rotate-tickets", cluster.ca)
        before = contents(cluster.ca)
        with pytest.raises(CtlError, match="has not ended"):
            cluster.do("pki", "rotate-tickets", cluster.ca)
        assert contents(cluster.ca) == before

    def test_a_gateways_folder_is_not_rotated(self, cluster: Cluster) -> None:
        before = contents(cluster.gateway)
        with pytest.raises(CtlError, match="there is no"):
            cluster.do("pki", "rotate-tickets", cluster.gateway)
        assert contents(cluster.gateway) == before

    def test_one_that_fails_at_any_moment_leaves_keys_that_work(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for failing in range(4):  # tickets.pub, tickets.key, and their folder after each
            with failing_sync(monkeypatch, failing), contextlib.suppress(CtlError):
                cluster.do("pki", "rotate-tickets", cluster.ca)
            assert cluster.do("pki", "show", cluster.ca)["problems"] == []
            for folder in (cluster.host, cluster.gateway):
                cluster.renew(folder)
            assert cluster.takes_tickets()
            cluster.do("pki", "rotate-tickets", cluster.ca, "--forget-old")


class TestShow:
    def test_what_a_program_may_rely_on(self, cluster: Cluster) -> None:
        for folder, kind, name in ((cluster.ca, "authority", None), (cluster.host, "host", "a")):
            shown = cluster.do("pki", "show", folder)
            assert (shown["kind"], shown["name"], shown["problems"], shown["warnings"]) == (kind, name, [], [])
            assert {"addresses", "serial", "starts_ms", "expires_ms", "tickets"} <= set(shown)
            assert "PRIVATE" not in json.dumps(shown)
        assert cluster.do("pki", "show", cluster.host)["addresses"] == ["127.0.0.1", "a.example.org"]

    @pytest.mark.parametrize(
        ("age_days", "code", "said"),
        [(0, 0, ""), (59, 0, ""), (61, 0, "ends in 28 days"), (91, 1, "has expired"), (-1, 1, "not valid yet")],
    )
    def test_it_warns_a_month_before_the_end_and_fails_after_it(
        self, ctl: Ctl, cluster: Cluster, age_days: int, code: int, said: str
    ) -> None:
        authority = pki.Authority(pki.Pair((cluster.ca / "ca.pem").read_bytes(), (cluster.ca / "ca.key").read_bytes()))
        now_ms = Output(io.StringIO(), as_json=True).now_ms
        made = authority.issue(Identity(Kind.HOST, "a"), ["a"], pki.at(now_ms - age_days * DAY_MS))
        files.put(cluster.host / "host.key", made.key, files.PRIVATE)
        files.put(cluster.host / "host.pem", made.certificate)
        ran = ctl("pki", "show", str(cluster.host), "--json")
        assert ran.code == code
        assert said in ran.err
        assert bool(said) == bool(ran.err) == bool(ran.json["problems"] + ran.json["warnings"])

    def test_what_is_wrong_with_a_folder_is_told(self, cluster: Cluster, folder: Path) -> None:
        (folder / "other").mkdir()
        other = Cluster(folder / "other")
        wrong: list[tuple[Path, str, bytes, str]] = [
            (cluster.host, "host.key", (other.host / "host.key").read_bytes(), "not the key of host.pem"),
            (cluster.host, "ca.pem", (other.ca / "ca.pem").read_bytes(), "not signed by ca.pem"),
            (cluster.host, "host.pem", (cluster.gateway / "gateway.pem").read_bytes(), "not one of a host"),
            (cluster.host, "tickets.pub", b"", "no public key"),
            (cluster.gateway, "tickets.key", (other.gateway / "tickets.key").read_bytes(), "public key of tickets.key"),
            (cluster.host, "host.key", b"nonsense", "no private key"),
            (cluster.host, "host.key", (cluster.gateway / "tickets.key").read_bytes(), "must be one for P-256"),
            (cluster.host, "host.pem", b"nonsense", "no certificate"),
            (cluster.gateway, "tickets.key", (cluster.ca / "ca.key").read_bytes(), "not an Ed25519"),
        ]
        for place, name, data, said in wrong:
            path = place / name
            kept = path.read_bytes()
            path.write_bytes(data)
            try:
                told = "; ".join(cluster.do("pki", "show", place)["problems"])
            except CtlError as error:
                told = error.message
            path.write_bytes(kept)
            assert said in told
        assert cluster.do("pki", "show", cluster.host)["problems"] == []

    def test_a_key_that_others_can_read_is_warned_of(self, ctl: Ctl, cluster: Cluster) -> None:
        (cluster.host / "host.key").chmod(0o644)
        ran = ctl("pki", "show", str(cluster.host))
        assert ran.code == 0
        assert "host.key can be read by others" in ran.err


class TestAuthority:
    def test_certificates_live_90_days_and_never_longer_than_their_authority(self) -> None:
        start = pki.at(NOW_MS)
        authority = pki.Authority(pki.new_authority(start))
        life_ms = int(pki.AUTHORITY_LIFE / timedelta(milliseconds=1))

        def expires_ms(now_ms: int) -> int:
            return pki.read(authority.issue(Identity(Kind.GATEWAY, "g"), [], pki.at(now_ms)).certificate).expires_ms

        assert expires_ms(NOW_MS) == NOW_MS + 90 * DAY_MS
        assert expires_ms(NOW_MS + life_ms - DAY_MS) == NOW_MS + life_ms
        with pytest.raises(pki.ConfigError, match="make a new one"):
            expires_ms(NOW_MS + life_ms)

    def test_what_is_no_authority_does_not_sign(self, cluster: Cluster) -> None:
        host = pki.Pair((cluster.host / "host.pem").read_bytes(), (cluster.host / "host.key").read_bytes())
        mixed = pki.Pair((cluster.ca / "ca.pem").read_bytes(), host.key)
        for pair in (host, mixed):
            with pytest.raises(pki.ConfigError, match="not of one authority"):
                pki.Authority(pair)
        assert host.key not in repr(host).encode()

    def test_addresses_are_kept_in_order_once_each_and_not_without_end(self) -> None:
        authority = pki.Authority(pki.new_authority(pki.at(NOW_MS)))
        whose = Identity(Kind.HOST, "a")
        made = authority.issue(whose, ["b.example.org", "10.0.0.1", "2001:db8::1", "b.example.org"], pki.at(NOW_MS))
        assert pki.read(made.certificate).addresses == ("b.example.org", "10.0.0.1", "2001:db8::1")
        with pytest.raises(pki.BadField, match="at most"):
            authority.issue(whose, [f"h{n}" for n in range(65)], pki.at(NOW_MS))
