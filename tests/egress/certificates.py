"""A certificate authority of the test, and one certificate for all names of its internet."""

import datetime
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

NAMES = ("example.com", "*.example.com", "*.w.example.com", "*.example.net")
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certificates:
    ca: Path  # what clients believe
    server: ssl.SSLContext


def make_certificates(folder: Path, names: Sequence[str] = NAMES) -> Certificates:
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = _named("the test's CA")
    is_ca = x509.BasicConstraints(ca=True, path_length=0)
    ca = _sign(ca_name, ca_key.public_key(), ca_name, ca_key, is_ca)
    alternative = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    is_not = x509.BasicConstraints(ca=False, path_length=None)
    made = _sign(_named("the test's internet"), key.public_key(), ca_name, ca_key, is_not, alternative)
    (folder / "ca.pem").write_bytes(ca.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.pem").write_bytes(made.public_bytes(Encoding.PEM) + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return Certificates(folder / "ca.pem", context)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _sign(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    return builder.sign(issuer_key, hashes.SHA256())
