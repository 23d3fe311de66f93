"""Addresses of the web as callers write them: repositories, webhooks, an agent's API. No I/O.

Read strictly: what two programs could read in two ways is refused. What may be a password is in no message.
"""

import re
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from contract.errors import BadField
from poold.egress.addresses import Address, literal
from poold.egress.names import canonical

MAX_CHARS = 2048
PORTS = {"http": 80, "https": 443}
_URL = re.compile(
    r"(?P<scheme>https?)://(?:(?P<user>[^/?#@\\]*)@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^/?#@:\\\[\]]+)"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>/[^?#\\]*)?(?P<query>\?[^#\\]*)?",
    re.IGNORECASE,
)
_NO_PORT = re.compile(r"^(?P<kept>[A-Za-z][A-Za-z0-9+.-]*://[^/:]*:)(?![0-9]{1,5}(?:/|$))[^/]*")


@dataclass(frozen=True)
class Credentials:
    """Who asks, and how they show it. Never printed."""

    username: str
    password: str

    def __repr__(self) -> str:
        return "Credentials(…)"

    def view(self) -> dict[str, str]:
        return {"username": self.username, "password": self.password}


@dataclass(frozen=True)
class Url:
    """An address of http or https, without whom it says to be."""

    scheme: str
    host: str  # a canonical name, or an address
    port: int
    target: str  # the path and the query; may be empty
    address: Address | None  # the host, if it is written in numbers
    credentials: Credentials | None = field(default=None, repr=False)

    @property
    def authority(self) -> str:
        """The host, and the port if it is not the usual one: what a request names."""
        host = f"[{self.host}]" if self.address is not None and self.address.version == 6 else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def read_url(text: str, name: str) -> Url:
    """The address that field `name` has. Raises `BadField`, whose value shows no password."""
    match = _URL.fullmatch(text)
    if match is None or len(text) > MAX_CHARS or not all("!" <= letter <= "~" for letter in text):
        raise BadField(name, redacted(text), f"must be an http or https address of at most {MAX_CHARS} characters")
    path = match["path"] or ""
    if "@" in path:
        # Else half of a password would be taken for a host, and the other half shown.
        raise BadField(name, redacted(text), "must have %40 for an @ in its path, and %2F for a / in its password")
    scheme, address = match["scheme"].lower(), literal(match["host"])
    host = str(address) if address is not None else canonical(match["host"])
    if host is None:
        raise BadField(name, redacted(text), "must have the name of a host, or its address in the usual form")
    port = int(match["port"] or PORTS[scheme])
    if not 1 <= port <= 65_535:
        raise BadField(name, redacted(text), "must have a port from 1 to 65535")
    credentials = _credentials(match["user"], text, name)
    return Url(scheme, host, port, path + (match["query"] or ""), address, credentials)


def redacted(text: str) -> str:
    """`text` without all that may be a password, whatever it is: what stands before an @, as a port, or in a query."""
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]{0,15}://", text)
    start = scheme[0] if scheme else ""
    _, at, after = text.rpartition("@")
    if at:
        return f"{start}…" if re.search(r"[?#]", text) else f"{start}…@{after}"
    shown = re.split(r"[?#]", text, maxsplit=1)[0]
    return _NO_PORT.sub(r"\g<kept>…", shown) + ("…" if shown != text else "")


def _credentials(user: str | None, text: str, name: str) -> Credentials | None:
    if not user:
        return None
    username, _, password = user.partition(":")
    return Credentials(_decoded(username, text, name), _decoded(password, text, name))


def _decoded(part: str, text: str, name: str) -> str:
    """Line ends would be words of the protocol in which git is told of it."""
    try:
        decoded = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        decoded = "\0"
    if re.search(r"[\x00-\x1f\x7f]", decoded) or re.search(r"%(?![0-9A-Fa-f]{2})", part):
        problem = "must have a user and a password that are UTF-8 in %-notation, without control characters"
        raise BadField(name, redacted(text), problem)
    return decoded
