"""Real certificates for tests: a private CA, and what it issues to hosts, gateways and others."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

ADDRESS = "127.0.0.1"
GATEWAY = "spiffe://warren/gateway/one"
DAY = datetime.timedelta(days=1)


class Authority:
    """A private CA."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _name("warren test CA")
        basic = x509.BasicConstraints(ca=True, path_length=0)
        self._certificate = self._sign(name, self._key, [basic], issuer=name)
        self.pem = self._certificate.public_bytes(Encoding.PEM)

    def issue(self, uri: str, *, days: int = 1) -> tuple[bytes, bytes]:
        """A certificate and its key, for whoever `uri` names, on this machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(ADDRESS))]
        names += [x509.UniformResourceIdentifier(each) for each in uri.split()]
        extensions: list[x509.ExtensionType] = [
            x509.BasicConstraints(ca=False, path_length=None),
            x509.SubjectAlternativeName(names),
        ]
        made = self._sign(_name("of a test"), key, extensions, days=days)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return made.public_bytes(Encoding.PEM), private

    def write_host(self, folder: Path, name: str = "here") -> None:
        """Make `folder` one that the host `name` can have as POOLD_PKI."""
        certificate, key = self.issue(f"spiffe://warren/host/{name}")
        for file, data in {"ca.pem": self.pem, "host.pem": certificate, "host.key": key}.items():
            (folder / file).write_bytes(data)

    def client(self, folder: Path, uri: str | None = None, **more: int) -> ssl.SSLContext:
        """A client's TLS: it believes this CA, and shows a certificate for `uri`, if there is one."""
        context = ssl.create_default_context(cadata=self.pem.decode())
        if uri is not None:
            certificate, key = self.issue(uri, **more)
            path = folder / "client.pem"
            path.write_bytes(certificate + key)
            context.load_cert_chain(path)
        return context

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extensions: list[x509.ExtensionType],
        *,
        issuer: x509.Name | None = None,
        days: int = 1,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 3 * DAY)
            .not_valid_after(now + days * DAY)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self._key, hashes.SHA256())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
