"""An authority, a host and a gateway for tests, and a TLS handshake between any two."""

import contextlib
import io
import json
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

from contract.identity import Identity, Kind, peer_identity
from contract.tickets import Access, BadTicket, Signer, Verifier, public_pems
from poold.ctl import pki as commands
from poold.ctl.client import Client
from poold.ctl.context import Context
from poold.ctl.parser import build
from warren_console.output import Output

LIMIT_S = 60.0
NOW_MS = 1_800_000_000_000


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
