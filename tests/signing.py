"""What a gateway does for a request before it sends it on: signs a ticket. For tests and benchmarks of a host."""

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from contract.ids import new_id
from contract.models import LOCAL_OWNER
from contract.tickets import HEADER, LIFE_MS, Access, Signer

ONE = re.compile(r"/v1/(?:sandboxes|tasks)/([^/]+)(/.*)?")
HOSTS = re.compile(r"/v1/(host|audit|sandboxes/states|owners/.*)")
ADMINS = ("/metrics", "/readyz")


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Gateway:
    """Signs for one host, with a key of its own. Tickets are used again for half of their life. Safe in all threads."""

    def __init__(self, host: str, now_ms: Callable[[], int] = wall_ms) -> None:
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self._host = host
        self._now_ms = now_ms
        self._signer = Signer(private, now_ms=now_ms, nonce=lambda: os.urandom(12).hex())
        self._signed: dict[tuple[str, Access, str | None], tuple[str, int]] = {}
        self._lock = threading.Lock()

    def write(self, folder: Path) -> Path:
        """Make `folder` one that the host can have as POOLD_PKI."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tickets.pub").write_bytes(self.public)
        return folder

    def headers(self, method: str, target: str, owner: str = LOCAL_OWNER) -> dict[str, str]:
        """For a request, with the access that it needs. `WS` is the method of a WebSocket."""
        return {HEADER: self.ticket(method, target, owner)}

    def ticket(self, method: str, target: str, owner: str = LOCAL_OWNER) -> str:
        path = urlsplit(target).path
        if (method, path) == ("POST", "/v1/sandboxes"):
            return self._kept(owner, Access.WRITE, new_id("sb", os.urandom))  # as good for what is done with it next
        if (method, path) == ("POST", "/v1/tasks"):
            return self._kept(owner, Access.WRITE, new_id("tk", os.urandom))
        return self._kept(owner, *_needed(method, path))

    def _kept(self, owner: str, access: Access, sandbox: str | None) -> str:
        with self._lock:
            text, until = self._signed.get((owner, access, sandbox), ("", 0))
            if until < self._now_ms():
                text, until = self.sign(owner, access, sandbox), self._now_ms() + LIFE_MS // 2
                self._signed[owner, access, sandbox] = text, until
            return text

    def sign(self, owner: str, access: Access, sandbox: str | None = None, **more: Any) -> str:
        """A new ticket."""
        return self._signer.sign(self._host, owner, access, sandbox, **more)


def _needed(method: str, path: str) -> tuple[Access, str | None]:
    """The access and the sandbox that a request needs in its ticket."""
    if path in ADMINS:
        return Access.ADMIN, None
    if HOSTS.fullmatch(path):
        return Access.HOST, None
    access = Access.READ if method == "GET" else Access.WRITE
    if (one := ONE.fullmatch(path)) is None:
        return access, None
    if method == "WS" and (one[2] or "").startswith("/ports/"):
        access = Access.PORT
    if one[2] == "/request":  # it has all that was asked for
        access = Access.WRITE
    return access, unquote(one[1])
