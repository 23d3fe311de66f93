"""The tickets that this gateway writes. Signing costs as much as all the rest of a request, so they are reused."""

import logging
from collections.abc import Callable
from pathlib import Path

from contract.keys import Pools
from contract.network import Network
from contract.tickets import LIFE_MS, Access, Signer
from gateway.errors import ConfigError

log = logging.getLogger("gateway.tickets")

REUSED_MS = LIFE_MS // 2  # so that one that is sent is good for as long again
MAX_REUSED = 20_000

What = tuple[str, str, Access, str | None, Pools | None]


class Tickets:
    """Signs with the key in a file; a new key there is used from the next `refresh` on."""

    def __init__(self, path: Path, *, now_ms: Callable[[], int], nonce: Callable[[], str]) -> None:
        self._path = path
        self._now_ms = now_ms
        self._nonce = nonce
        self._pem = b""
        self._made: dict[What, tuple[int, str]] = {}
        try:
            self._use(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"GATEWAY_PKI: {path} has no key for tickets: {error}") from None

    def get(
        self,
        host: str,
        owner: str,
        access: Access,
        sandbox: str | None = None,
        *,
        pools: Pools | None = None,
        network: Network | None = None,
    ) -> str:
        """A ticket that is good for half its life at least, perhaps one that was used before."""
        if network is not None:  # it is large, and is for one sandbox that is made once
            return self._signer.sign(host, owner, access, sandbox, pools=pools, network=network)
        what = (host, owner, access, sandbox, pools)
        now_ms = self._now_ms()
        made = self._made.get(what)
        if made is not None and made[0] > now_ms:
            return made[1]
        ticket = self._signer.sign(host, owner, access, sandbox, pools=pools)
        if len(self._made) >= MAX_REUSED:
            self._made.clear()
        self._made[what] = (now_ms + REUSED_MS, ticket)
        return ticket

    def once(self, host: str, owner: str, access: Access, sandbox: str) -> tuple[str, int]:
        """A ticket that nobody else gets, and when it ends."""
        return self._signer.sign(host, owner, access, sandbox), self._now_ms() + LIFE_MS

    def refresh(self) -> None:
        """Look at the file again. Called in a thread; one that cannot be read leaves the old key in use."""
        try:
            pem = self._path.read_bytes()
            if pem != self._pem:
                self._use(pem)
                log.info("tickets are signed with a new key")
        except (OSError, ValueError) as error:
            log.error("the key for tickets cannot be read again", extra={"why": str(error)})

    def _use(self, pem: bytes) -> None:
        self._signer = Signer(pem, now_ms=self._now_ms, nonce=self._nonce)
        self._pem = pem
        self._made = {}
