"""Tickets: what a gateway tells a host about who asks and what they may do, signed and valid for a short time.

A host believes a ticket and nothing else. It names the host, so it is of no use to another; the owner; what may be done
(`access`) and to which sandbox; where quotas are checked, what the owner may have; and, where a sandbox is made, what
its key's network policy is.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from contract.errors import BadField, CallerError
from contract.keys import Pools
from contract.network import Network

HEADER = "warren-ticket"
VERSION = "wt1"
LIFE_MS = 60_000
SKEW_MS = 5_000  # by which two machines' clocks may differ
MAX_CHARS = 8192  # of which a key's network policy has most
MAX_KEYS = 8  # public keys that a host takes tickets of: two while the gateways' key is being replaced
PUBLIC_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----[^-]*-----END PUBLIC KEY-----\n?")


class Access(StrEnum):
    """The class of what may be done. Each is a door of its own: none includes another."""

    READ = "read"  # look at a sandbox, or list the owner's
    WRITE = "write"  # make, use, change and end a sandbox
    ATTACH = "attach"  # one terminal connection, once, by whoever holds the ticket
    PORT = "port"  # connections to a port of a sandbox; without an owner, only to a port that is public
    HOST = "host"  # what gateways ask of a host for themselves: its record, reservations
    ADMIN = "admin"  # what only the operator may: every owner's sandboxes, metrics

    __hash__ = str.__hash__  # that of an Enum is written in Python, and tickets are found by it


@dataclass(frozen=True)
class Ticket:
    host: str
    owner: str
    access: Access
    sandbox: str | None  # the only one that it is good for; None: for requests that name none
    expires_ms: int
    nonce: str
    pools: Pools | None = None  # what the owner may have, where that is asked
    network: dict[str, Any] | None = None  # what the key's sandboxes may reach (`Network.view`), where one is made


class BadTicket(CallerError):
    """The request has no ticket, or none that is good for it."""

    status = 401
    code = "bad_ticket"


class Signer:
    """Writes tickets. A gateway has one."""

    def __init__(self, private_pem: bytes, *, now_ms: Callable[[], int], nonce: Callable[[], str]) -> None:
        key = load_pem_private_key(private_pem, None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("the key for tickets must be an Ed25519 private key in PEM")
        self._key = key
        self._now_ms = now_ms
        self._nonce = nonce

    def sign(
        self,
        host: str,
        owner: str,
        access: Access,
        sandbox: str | None = None,
        *,
        pools: Pools | None = None,
        network: Network | None = None,
        life_ms: int = LIFE_MS,
    ) -> str:
        ticket = Ticket(host, owner, access, sandbox, self._now_ms() + life_ms, self._nonce(), pools)
        # A host of a former version takes tickets that say nothing of networks, and no others.
        said = asdict(ticket) | {"network": network.view()} if network else _without_network(ticket)
        payload = _text(orjson.dumps(said))
        return f"{VERSION}.{payload}.{_text(self._key.sign(_signed(payload)))}"


class Verifier:
    """Reads tickets that are meant for one host. Of those that it found good it remembers the last ones."""

    REMEMBERED = 4096

    def __init__(
        self, host: str, public_pems: Iterable[bytes], *, now_ms: Callable[[], int], life_ms: int = LIFE_MS
    ) -> None:
        self._host = host
        self._life_ms = life_ms
        self._keys = [_public(pem) for pem in public_pems]
        if len(self._keys) > MAX_KEYS:
            raise ValueError(f"there are {len(self._keys)} public keys for tickets, and {MAX_KEYS} are enough")
        self._now_ms = now_ms
        self._good: dict[str, Ticket] = {}

    def verify(self, text: str | None) -> Ticket:
        """The ticket, or `BadTicket` with what is wrong with it."""
        if not text:
            raise BadTicket(f"this needs a ticket in the header {HEADER}; clients talk to a gateway")
        ticket = self._good.get(text)
        if ticket is None:
            ticket = self._read(text)
        if ticket.expires_ms <= self._now_ms() - SKEW_MS:
            self._good.pop(text, None)
            raise BadTicket("the ticket has expired", expired_ms=ticket.expires_ms)
        if ticket.expires_ms > self._now_ms() + self._life_ms + SKEW_MS:
            raise BadTicket("the ticket is valid for too long: are the clocks of gateway and host right?")
        return ticket

    def _read(self, text: str) -> Ticket:
        version, _, rest = text.partition(".")
        payload, _, signature = rest.partition(".")
        if len(text) > MAX_CHARS or version != VERSION or not self._is_signed(payload, signature):
            raise BadTicket("the ticket is not signed by a gateway of this cluster")
        ticket = _ticket(payload)
        if ticket.host != self._host:
            raise BadTicket(f"the ticket is for another host than {self._host}")
        if ticket.network is None:  # else it is large, and for one sandbox that is made once
            self._remember(text, ticket)
        return ticket

    def _remember(self, text: str, ticket: Ticket) -> None:
        if len(self._good) >= self.REMEMBERED:
            self._good.clear()
        self._good[text] = ticket

    def _is_signed(self, payload: str, signature: str) -> bool:
        for key in self._keys:
            try:
                key.verify(_bytes(signature), _signed(payload))
            except (InvalidSignature, ValueError):
                continue
            return True
        return False


class Used:
    """The nonces of tickets that are good once. One is remembered for as long as its ticket could come again."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._until: dict[str, int] = {}

    def use(self, ticket: Ticket) -> None:
        now_ms = self._now_ms()
        if ticket.nonce in self._until:
            raise BadTicket("the ticket was used before; ask for another")
        self._until = {nonce: until for nonce, until in self._until.items() if until > now_ms}
        self._until[ticket.nonce] = ticket.expires_ms + SKEW_MS


def public_pems(data: bytes) -> list[bytes]:
    """Each of the public keys in a file of them: there are two while the gateways' key is being replaced."""
    return PUBLIC_PEM.findall(data)


def _ticket(payload: str) -> Ticket:
    """What a gateway signed. One that says more than we understand may mean less than we would allow: it is refused."""
    try:
        values: dict[str, Any] = orjson.loads(_bytes(payload))
        pools = None if values["pools"] is None else Pools(**values["pools"])
        ticket = Ticket(**{**values, "access": Access(values["access"]), "pools": pools})
        if not _is_sound(ticket):
            raise ValueError("a field is of the wrong kind")
    except (TypeError, KeyError, ValueError, BadField):
        raise BadTicket("the ticket cannot be read: is this host older than the gateway?") from None
    return ticket


def _is_sound(ticket: Ticket) -> bool:
    texts = (ticket.host, ticket.owner, ticket.nonce, "" if ticket.sandbox is None else ticket.sandbox)
    numbers = (ticket.expires_ms, *vars(ticket.pools or Pools()).values())
    if ticket.network is not None:
        Network.decode(ticket.network)  # raises
    return all(type(text) is str for text in texts) and all(type(number) is int for number in numbers)


def _without_network(ticket: Ticket) -> dict[str, Any]:
    return {name: value for name, value in asdict(ticket).items() if name != "network"}


def _public(pem: bytes) -> Ed25519PublicKey:
    key = load_pem_public_key(pem)
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("a key for tickets must be an Ed25519 public key in PEM")
    return key


def _signed(payload: str) -> bytes:
    """What the signature covers: nothing else that this key may ever sign begins like this."""
    return b"warren ticket " + payload.encode()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """What `_text` was given. Only what `_text` writes is taken: decoders are lenient, and one ticket is one text."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"not base64: {error}") from None
    if _text(data) != text:
        raise ValueError("not base64 as we write it")
    return data
