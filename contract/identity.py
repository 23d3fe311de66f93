"""Who a certificate belongs to. It says so in one URI among its names: spiffe://warren/KIND/NAME."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from contract.errors import BadField
from contract.hosts import NAME

TRUST = "spiffe://warren/"


class Kind(StrEnum):
    HOST = "host"
    GATEWAY = "gateway"


@dataclass(frozen=True)
class Identity:
    """A host or a gateway, by name."""

    kind: Kind
    name: str

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise BadField("name", self.name, "must be lower-case letters, digits, '.' and '-', at most 63")

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def uri(self) -> str:
        return f"{TRUST}{self.kind}/{self.name}"


def identity(uris: Iterable[str]) -> Identity | None:
    """Whose certificate it is that has these URIs. None if it is nobody's of ours, or could be of two."""
    ours = [uri.removeprefix(TRUST) for uri in uris if uri.startswith(TRUST)]
    if len(ours) != 1:
        return None
    kind, _, name = ours[0].partition("/")
    return Identity(Kind(kind), name) if kind in set(Kind) and NAME.fullmatch(name) else None


def peer_identity(peer: Mapping[str, Any] | None) -> Identity | None:
    """The same for what `SSLSocket.getpeercert()` gives of a certificate that was verified."""
    names = (peer or {}).get("subjectAltName", ())
    return identity(value for kind, value in names if kind == "URI")
