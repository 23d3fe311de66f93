"""`pooldctl pki`: certificates that TLS takes for what they are for, and folders that are whole whatever happens."""

import contextlib
import io
import json
import os
import shutil
import ssl
import stat
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from contract.identity import Identity, Kind
from contract.tickets import Access, BadTicket
from poold import files, pki
from poold.ctl.errors import CtlError
from tests.unit.ctl.conftest import Ctl
from tests.unit.ctl.ctl_cluster import NOW_MS, Cluster, context_of, handshake
from warren_console.output import Output

DAY_MS = 24 * 3600 * 1000
SHARED_FILES = {"ca.pem": 0o644, "tickets.pub": 0o644}
AUTHORITY_FILES = {**SHARED_FILES, "ca.key": 0o600, "tickets.key": 0o600, "seal.key": 0o600}
HOST_FILES = {**SHARED_FILES, "host.pem": 0o644, "host.key": 0o600, "seal.key": 0o600}
GATEWAY_FILES = {**SHARED_FILES, "gateway.pem": 0o644, "gateway.key": 0o600, "tickets.key": 0o600}


@pytest.fixture
def cluster(folder: Path) -> Cluster:
    return Cluster(folder)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class TestFolders:
    def test_they_have_what_daemons_need_and_keys_are_for_nobody_else(self, cluster: Cluster) -> None:
        for folder, wanted in (
            (cluster.ca, AUTHORITY_FILES),
            (cluster.host, HOST_FILES),
            (cluster.gateway, GATEWAY_FILES),
        ):
            assert modes(folder) == wanted
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            keys = [path.read_bytes() for path in folder.glob("*.key") if path.name != "seal.key"]
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
        for failing in range(6):  # five files, then their folder
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


class TestSeal:
    def test_hosts_of_one_authority_have_one_key_and_gateways_have_none(self, cluster: Cluster, folder: Path) -> None:
        cluster.do("pki", "issue", cluster.ca, "host", "b", "--address", "b", "--out", folder / "b")
        keys = {(each / "seal.key").read_bytes() for each in (cluster.ca, cluster.host, folder / "b")}
        assert len(keys) == 1
        assert not (cluster.gateway / "seal.key").exists()

    def test_an_authority_from_before_gets_one_with_its_next_host(self, cluster: Cluster) -> None:
        for each in (cluster.ca, cluster.host):
            (each / "seal.key").unlink()
        cluster.renew(cluster.host)
        assert (cluster.host / "seal.key").read_bytes() == (cluster.ca / "seal.key").read_bytes()


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
