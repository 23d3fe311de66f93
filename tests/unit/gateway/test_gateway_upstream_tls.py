"""The client to hosts over TLS: both sides show certificates, names are checked, and new files count at once."""

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flow_hosts import OK, Peer, always, scripted_host

from gateway.errors import HostUnreachable
from gateway.upstream import Upstream
from gateway.upstream.dial import WrongHost
from gateway.upstream.sockets import open_socket

NOW = datetime.datetime.now(datetime.UTC)


class Authority:
    """A private CA, which makes certificates into a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        builder = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        self._cert = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(NOW - datetime.timedelta(hours=1))
        return builder.not_valid_after(NOW + datetime.timedelta(hours=1))

    def issue(self, name: str, address: str = "127.0.0.1", uri: str = "spiffe://warren/host/a") -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        whose = [x509.UniformResourceIdentifier(uri)] if uri else []
        names = x509.SubjectAlternativeName([*whose, x509.IPAddress(ipaddress.ip_address(address))])
        cert = self._builder(subject, key).add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        cert_file, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        cert_file.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        key_file.write_bytes(key.private_bytes(*plain))
        return cert_file, key_file


def host_side(ca: Authority, files: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca.file))
    context.load_cert_chain(*files)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def gateway_side(ca: Authority, files: tuple[Path, Path] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca.file))
    if files is not None:
        context.load_cert_chain(*files)
    return context


async def status_of(upstream: Upstream) -> int:
    async with asyncio.timeout(10), upstream.stream("GET", "/x", []) as answer:
        return answer.status


async def test_a_host_of_our_authority_is_asked_and_new_files_count_for_the_next_connection(tmp_path: Path) -> None:
    ca, other = Authority(tmp_path, "ca"), Authority(tmp_path, "other")
    contexts = [gateway_side(other, None), gateway_side(ca, ca.issue("gateway"))]
    async with scripted_host(always(OK), host_side(ca, ca.issue("host"))) as host:
        upstream = Upstream(host.address, host="a", tls=lambda: contexts.pop(0))
        try:
            with pytest.raises(HostUnreachable) as caught:
                await status_of(upstream)
            assert not caught.value.sent
            assert await status_of(upstream) == 200
            assert await status_of(upstream) == 200  # on the kept connection: there is no third context
        finally:
            await upstream.close()


async def test_a_host_with_a_certificate_for_another_address_is_refused(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    files = ca.issue("gateway")
    async with scripted_host(always(OK), host_side(ca, ca.issue("host", "127.0.0.9"))) as host:
        upstream = Upstream(host.address, host="a", tls=lambda: gateway_side(ca, files))
        try:
            with pytest.raises(HostUnreachable):
                await status_of(upstream)
        finally:
            await upstream.close()


async def test_a_gateway_without_a_certificate_gets_no_answer(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")

    async def talk(peer: Peer) -> None:
        raise AssertionError("the host talked to nobody knows whom")

    async with scripted_host(talk, host_side(ca, ca.issue("host"))) as host:
        upstream = Upstream(host.address, host="a", tls=lambda: gateway_side(ca, None))
        try:
            with pytest.raises(HostUnreachable):
                await status_of(upstream)
        finally:
            await upstream.close()


def test_https_without_a_context_or_a_name_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="TLS"):
        Upstream("https://127.0.0.1:1", host="a")
    with pytest.raises(ValueError, match="name"):
        Upstream("https://127.0.0.1:1", tls=ssl.create_default_context)


OTHERS = {
    "spiffe://warren/host/b": "host b",
    "spiffe://warren/gateway/a": "gateway a",
    "spiffe://elsewhere/host/a": "nobody of ours",
    "": "nobody of ours",
}


@contextlib.asynccontextmanager
async def somebody_else(folder: Path, uri: str) -> AsyncIterator[tuple[Upstream, list[bytes]]]:
    """The way to host a, where somebody else answers under its address; and what they hear."""
    heard: list[bytes] = []

    async def talk(peer: Peer) -> None:
        heard.append(await peer.reader.read(1))

    ca = Authority(folder, "ca")
    context = gateway_side(ca, ca.issue("gateway"))
    async with scripted_host(talk, host_side(ca, ca.issue("host", uri=uri))) as host:
        upstream = Upstream(host.address, host="a", tls=lambda: context)
        try:
            async with asyncio.timeout(10):
                yield upstream, heard
        finally:
            await upstream.close()


@pytest.mark.parametrize(("uri", "found"), OTHERS.items())
async def test_somebody_else_under_a_hosts_address_is_told_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, uri: str, found: str
) -> None:
    async with somebody_else(tmp_path, uri) as (upstream, heard):
        for _ in range(3):
            with pytest.raises(HostUnreachable, match=f"that of {found}, and not of host a") as caught:
                await status_of(upstream)
            assert not caught.value.sent
        assert not any(heard)
    (record,) = [record for record in caplog.records if record.name == "gateway.upstream"]
    assert (vars(record)["expected"], vars(record)["found"]) == ("host a", found), "said once, and not every second"


async def test_nor_by_a_websocket(tmp_path: Path) -> None:
    async with somebody_else(tmp_path, "spiffe://warren/host/b") as (upstream, heard):
        with pytest.raises(WrongHost, match="host b"):
            await open_socket(upstream.dialler, "/x", additional_headers={"Warren-Ticket": "secret"})
        assert not any(heard)
