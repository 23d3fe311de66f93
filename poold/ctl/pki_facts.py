"""What a folder of certificates says, and what is wrong with it."""

import hashlib
from pathlib import Path
from typing import Any

from contract.identity import Kind
from contract.tickets import public_pems
from poold import pki

DAY_MS = 24 * 3600 * 1000
SOON_MS = 30 * DAY_MS  # the time to renew
SHOWN_CHARS = 12
OTHERS = 0o077


def find_kind(folder: Path) -> Kind | None:
    """Whose folder it is; None: neither a host's nor a gateway's."""
    return next((kind for kind in Kind if (folder / f"{kind}.pem").exists()), None)


def folder_facts(folder: Path, now_ms: int) -> dict[str, Any]:
    """`problems` make the folder useless, `warnings` will, or make it unsafe."""
    kind = find_kind(folder)
    stem = "ca" if kind is None else kind.value
    certificate = (folder / f"{stem}.pem").read_bytes()
    said = pki.read(certificate)
    known = [_print_of(pem) for pem in public_pems((folder / "tickets.pub").read_bytes())]
    problems = [*_key_problems(folder, stem, certificate), *_said_problems(said, kind, now_ms)]
    return {
        "kind": "authority" if kind is None else kind.value,
        "name": None if said.identity is None else said.identity.name,
        "addresses": list(said.addresses),
        "serial": said.serial,
        "starts_ms": said.starts_ms,
        "expires_ms": said.expires_ms,
        "tickets": known,
        "problems": [*problems, *_ticket_problems(folder, kind, known)],
        "warnings": [*_soon(said, now_ms), *_open_keys(folder)],
    }


def _key_problems(folder: Path, stem: str, certificate: bytes) -> list[str]:
    found = []
    if not pki.is_pair(pki.Pair(certificate, (folder / f"{stem}.key").read_bytes())):
        found.append(f"{stem}.key is not the key of {stem}.pem: renew it")
    if not pki.is_issued_by(certificate, (folder / "ca.pem").read_bytes()):
        found.append(f"{stem}.pem is not signed by ca.pem")
    return found


def _said_problems(said: pki.Certificate, kind: Kind | None, now_ms: int) -> list[str]:
    found = []
    whose = None if said.identity is None else said.identity.kind
    if whose is not kind or said.is_authority is not (kind is None):
        found.append(f"the certificate is not one of {'an authority' if kind is None else f'a {kind}'}")
    if said.expires_ms <= now_ms:
        found.append("the certificate has expired")
    if said.starts_ms > now_ms:
        found.append("the certificate is not valid yet: is the clock right?")
    return found


def _ticket_problems(folder: Path, kind: Kind | None, known: list[str]) -> list[str]:
    """Who signs tickets must have a key that is known as theirs."""
    if kind is Kind.HOST:
        return [] if known else ["tickets.pub has no public key"]
    own = _print_of(pki.ticket_public((folder / "tickets.key").read_bytes()))
    return [] if own in known else ["tickets.pub does not have the public key of tickets.key"]


def _soon(said: pki.Certificate, now_ms: int) -> list[str]:
    left_ms = said.expires_ms - now_ms
    return [f"the certificate ends in {left_ms // DAY_MS} days: renew it"] if 0 < left_ms < SOON_MS else []


def _open_keys(folder: Path) -> list[str]:
    return [
        f"{path.name} can be read by others: chmod 600"
        for path in sorted(folder.glob("*.key"))
        if path.stat().st_mode & OTHERS
    ]


def _print_of(pem: bytes) -> str:
    """A few characters by which people tell public keys apart."""
    return hashlib.sha256(b"".join(pem.split())).hexdigest()[:SHOWN_CHARS]
