"""Passes: signed permissions to see one preview for a while. They travel in a link once, and then in a cookie."""

import logging
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from contract.asked import MAX_LINK_S
from contract.tickets import Access, BadTicket, Signer, Verifier, public_pems
from gateway.errors import ConfigError

log = logging.getLogger("gateway.preview")

FIELD = "warren-pass"  # of a query
AUDIENCE = "/preview"  # in place of a host's name: no host can be called that, so none takes a pass for a ticket


class Passes:
    """Signs and reads passes with the gateways' keys for tickets: every gateway takes what another has signed."""

    def __init__(self, folder: Path, *, now_ms: Callable[[], int], nonce: Callable[[], str]) -> None:
        self._files = (folder / "tickets.key", folder / "tickets.pub")
        self._now_ms = now_ms
        self._nonce = nonce
        self._read_pems: tuple[bytes, bytes] = (b"", b"")
        try:
            self._use(self._pems())
        except (OSError, ValueError) as error:
            raise ConfigError(f"GATEWAY_PKI: {folder} has no keys for tickets: {error}") from None

    def sign(self, owner: str, label: str, life_s: int) -> str:
        return self._signer.sign(AUDIENCE, owner, Access.PORT, label, life_ms=life_s * 1000)

    def read(self, text: str, label: str) -> tuple[str, int]:
        """For whom the pass speaks, and for how many more seconds. Raises `BadTicket` if it is not for this preview."""
        ticket = self._verifier.verify(text)
        if ticket.sandbox != label or ticket.access is not Access.PORT or not ticket.owner:
            raise BadTicket("the link is for another preview")
        return ticket.owner, max(1, (ticket.expires_ms - self._now_ms()) // 1000)

    def refresh(self) -> None:
        """Look at the files again. May be called in a thread; what cannot be read leaves the old keys in use."""
        try:
            if (pems := self._pems()) != self._read_pems:
                self._use(pems)
        except (OSError, ValueError) as error:
            log.error("the keys for links cannot be read again", extra={"why": str(error)})

    def _pems(self) -> tuple[bytes, bytes]:
        key, public = self._files
        return key.read_bytes(), public.read_bytes() if public.exists() else b""

    def _use(self, pems: tuple[bytes, bytes]) -> None:
        key, public = pems
        ours = load_pem_private_key(key, None).public_key()
        known = [ours.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), *public_pems(public)]
        self._signer = Signer(key, now_ms=self._now_ms, nonce=self._nonce)
        self._verifier = Verifier(AUDIENCE, known, now_ms=self._now_ms, life_ms=MAX_LINK_S * 1000)
        self._read_pems = pems


def preview_address(sandbox: str, port: int, *, scheme: str, host: str, domain: str | None) -> str:
    """Where a preview is seen. `scheme` and `host` are those by which the gateway was asked."""
    if domain is None:
        return f"{scheme}://{host}/p/{sandbox}/{port}/"
    _, colon, listening = host.rpartition(":")
    suffix = f":{listening}" if colon and listening.isdigit() else ""
    return f"{scheme}://{preview_label(sandbox, port)}.{domain}{suffix}/"


def preview_label(sandbox: str, port: int) -> str:
    """The name of a preview: a pass is good for exactly one."""
    return f"{port}-{sandbox}"
