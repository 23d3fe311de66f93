"""What leaves a host and may be a secret is sealed: only hosts of the same cluster can read it, nobody can change it.

The key is a file that all hosts of a cluster have alike (`seal.key`, made by `pooldctl pki`). What a sealed thing is
about is sealed with it, so that it cannot be put in the place of another. No I/O here.
"""

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from contract.errors import FaultError
from poold.errors import ConfigError

KEY_BYTES = 32
NONCE_BYTES = 12
HEAD = b"warren-seal-1\n"


class Broken(FaultError):
    """It was sealed with another key, was changed, or is about something else."""

    code = "seal_broken"


def new_key() -> bytes:
    """A key, as its file has it."""
    return secrets.token_hex(KEY_BYTES).encode() + b"\n"


class Seal:
    """Never printed: it is the key."""

    def __init__(self, key: bytes) -> None:
        try:
            raw = bytes.fromhex(key.decode("ascii").strip())
        except ValueError:  # not of it: the message would have the key
            raw = b""
        if len(raw) != KEY_BYTES:
            raise ConfigError(f"seal.key is not what 'pooldctl pki' makes: {KEY_BYTES} bytes as hexadecimal digits")
        self._cipher = AESGCM(raw)

    def __repr__(self) -> str:
        return "Seal(…)"

    def close(self, data: bytes, about: str) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return HEAD + nonce + self._cipher.encrypt(nonce, data, about.encode())

    def open(self, sealed: bytes, about: str) -> bytes:
        if not sealed.startswith(HEAD):
            raise Broken(f"{about} is not sealed in a way that this version knows")
        nonce, rest = sealed[len(HEAD) :][:NONCE_BYTES], sealed[len(HEAD) + NONCE_BYTES :]
        try:
            return self._cipher.decrypt(nonce, rest, about.encode())
        except (InvalidTag, ValueError):
            raise Broken(f"{about} was sealed with another key than this host's seal.key, or was changed") from None
