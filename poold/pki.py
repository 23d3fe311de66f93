"""Certificates and the keys for tickets: making and reading them. No I/O: PEM goes in and comes out.

Certificates have P-256 keys, which OpenSSL, rustls and browsers all take (browsers attach to a host directly, and take
no Ed25519). Private keys are PKCS#8, because Granian takes nothing else. Each certificate says whose it is in a URI
(`contract.identity`), and where it is served in DNS names and addresses.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from contract.errors import BadField
from contract.identity import Identity, Kind, identity
from poold.errors import ConfigError

AUTHORITY_LIFE = timedelta(days=3650)
LIFE = timedelta(days=90)
BACKDATED = timedelta(minutes=5)  # the clock of who reads a new certificate may be behind ours
MAX_ADDRESSES = 64
DNS = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, in PEM. Never printed: the key is a secret."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Pair(…)"


@dataclass(frozen=True)
class Certificate:
    """What a certificate says."""

    identity: Identity | None  # None: of nobody that we know; an authority's own is such a one
    is_authority: bool
    addresses: tuple[str, ...]
    serial: str
    starts_ms: int
    expires_ms: int


class Authority:
    """The cluster's own, which signs the certificates of hosts and gateways."""

    def __init__(self, pair: Pair) -> None:
        self._certificate = _certificate(pair.certificate)
        self._key = _private(pair.key)
        if not read(pair.certificate).is_authority or not is_pair(pair):
            raise ConfigError("ca.pem and ca.key do not belong together: they are not of one authority")

    def issue(self, whose: Identity, addresses: Sequence[str], now: datetime) -> Pair:
        """A certificate with a new key. It ends with the authority's own, if that is sooner."""
        ends = self._certificate.not_valid_after_utc
        if now >= ends:
            raise ConfigError(f"the authority's own certificate ended at {ends:%Y-%m-%d}: make a new one (pki init)")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(whose.name, whose.kind), key.public_key(), now, min(now + LIFE, ends))
        builder = builder.issuer_name(self._certificate.subject)
        for extension, is_critical in _leaf_extensions(whose, addresses, self._key.public_key()):
            builder = builder.add_extension(extension, critical=is_critical)
        return _pair(builder.sign(self._key, hashes.SHA256()), key)

    def has_issued(self, certificate: bytes) -> bool:
        return is_issued_by(certificate, self._certificate.public_bytes(Encoding.PEM))


def new_authority(now: datetime) -> Pair:
    """It signs leaves and no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Warren")
    builder = _builder(name, key.public_key(), now, now + AUTHORITY_LIFE).issuer_name(name)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def new_ticket_key() -> bytes:
    """A private key that gateways sign tickets with."""
    return _key_pem(ed25519.Ed25519PrivateKey.generate())


def ticket_public(private: bytes) -> bytes:
    """The public key of `private`, which hosts check tickets with."""
    key = _loaded(private)
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ConfigError("tickets.key is not an Ed25519 private key")
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def read(certificate: bytes) -> Certificate:
    """What the PEM says. Nothing is verified."""
    found = _certificate(certificate)
    try:
        names = _names(found)
        basic = found.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise ConfigError(f"this is no certificate of ours: {error}") from None
    return Certificate(
        identity=identity(names.get_values_for_type(x509.UniformResourceIdentifier)),
        is_authority=basic.ca,
        addresses=tuple(map(str, _addresses_in(names))),
        serial=f"{found.serial_number:x}",
        starts_ms=_ms(found.not_valid_before_utc),
        expires_ms=_ms(found.not_valid_after_utc),
    )


def is_pair(pair: Pair) -> bool:
    """Whether the key is the certificate's."""
    return _private(pair.key).public_key() == _certificate(pair.certificate).public_key()


def is_issued_by(certificate: bytes, authority: bytes) -> bool:
    """Whether `authority` signed it. Times and purposes are not looked at."""
    try:
        _certificate(certificate).verify_directly_issued_by(_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def address_name(text: str, *, may_be_wildcard: bool) -> x509.GeneralName:
    """An IP address, or a DNS name (for a gateway also with `*.` before it, for previews)."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    name = text.removeprefix("*.") if may_be_wildcard else text
    if not DNS.fullmatch(name) or re.fullmatch(r"[0-9.]+", name):
        raise BadField("address", text, "must be an IP address or a lower-case DNS name, without scheme and port")
    return x509.DNSName(text)


def _leaf_extensions(
    whose: Identity, addresses: Sequence[str], signer: ec.EllipticCurvePublicKey
) -> Iterable[tuple[x509.ExtensionType, bool]]:
    """Hosts are dialled, gateways dial; a gateway with addresses may also serve its own clients."""
    purposes = []
    if whose.kind is Kind.HOST or addresses:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    if whose.kind is Kind.GATEWAY:
        purposes.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    yield x509.BasicConstraints(ca=False, path_length=None), True
    yield _usage(signs_certificates=False), True
    yield x509.ExtendedKeyUsage(purposes), False
    yield x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), False
    yield x509.SubjectAlternativeName([x509.UniformResourceIdentifier(whose.uri), *_served(whose, addresses)]), False


def _served(whose: Identity, addresses: Sequence[str]) -> list[x509.GeneralName]:
    if whose.kind is Kind.HOST and not addresses:
        raise BadField("address", "", "a host needs at least one: what gateways dial")
    if len(addresses) > MAX_ADDRESSES:
        raise BadField("address", len(addresses), f"at most {MAX_ADDRESSES} addresses")
    return [address_name(text, may_be_wildcard=whose.kind is Kind.GATEWAY) for text in dict.fromkeys(addresses)]


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common: str, kind: str | None = None) -> x509.Name:
    unit = [] if kind is None else [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, kind)]
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Warren")
    return x509.Name([organization, *unit, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])


def _addresses_in(names: x509.SubjectAlternativeName) -> Iterable[object]:
    """As they were given, so that a renewed certificate has them in the same order."""
    return [name.value for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise ConfigError("this is no certificate in PEM") from None


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = _loaded(pem)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("the private key of a certificate must be one for P-256")
    return key


def _loaded(pem: bytes) -> object:
    """Whatever is wrong with a private key, the message has nothing of it."""
    try:
        return load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError("this is no private key in PEM without a password") from None


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(certificate.public_bytes(Encoding.PEM), _key_pem(key))


def _key_pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def at(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000, UTC)
