"""API keys: the secret that a client has, and the record that is all that anyone else has of it."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import orjson

from contract.errors import BadField, CallerError, WrongState
from contract.fields import Fields
from contract.models import OWNER, owner_name
from contract.network import Network

SECRET = re.compile(r"(?:wrn|e2b)_([0-9a-f]{40})")
SECRET_BYTES = 20
MAX_POOL = 1 << 40
MAX_RATE = 1_000_000
DEFAULT_RATE = 50
USUAL_GRACE_S = 3600  # enough to hand out the new secret; who wants the old one dead at once says so
MAX_GRACE_S = 30 * 24 * 3600
MAX_SCOPES = 16
MAX_NETWORK_BYTES = 4096  # as JSON: it is in the ticket of every create


class Scope(StrEnum):
    SANDBOXES = "sandboxes"
    TASKS = "tasks"
    ADMIN = "admin"


USUAL_SCOPES = (Scope.SANDBOXES, Scope.TASKS)


@dataclass(frozen=True)
class Pools:
    """What all sandboxes of an owner may have together, paused ones included."""

    vcpus: int = 32
    memory_mb: int = 65_536
    disk_mb: int = 1_048_576


@dataclass(frozen=True)
class Key:
    """The record of a key. Its secret cannot be found from it."""

    id: str  # the SHA-256 of the secret's digits, in hex
    owner: str
    name: str = ""  # for people
    plan: str = "default"
    pools: Pools = field(default_factory=Pools)
    scopes: tuple[Scope, ...] = USUAL_SCOPES
    rate: int = DEFAULT_RATE  # requests a second, at each gateway; twice as many at once
    created_ms: int = 0
    expires_ms: int | None = None
    active: bool = True
    # What its sandboxes may reach if they ask for nothing else, and what they never get out of. None: it says nothing.
    network: Network | None = None

    def view(self) -> dict[str, Any]:
        """The record as it is told and kept."""
        return asdict(self)

    def state(self, now_ms: int) -> str:
        """`active`, or why it is good for nothing: `revoked`, `expired`."""
        if not self.active:
            return "revoked"
        return "expired" if self.expires_ms is not None and self.expires_ms <= now_ms else "active"

    def revoked(self) -> "Key":
        return replace(self, active=False)

    def ending(self, at_ms: int) -> "Key":
        """The same, good until then at most."""
        return replace(self, expires_ms=at_ms if self.expires_ms is None else min(self.expires_ms, at_ms))

    def successor(self, key_id: str, now_ms: int) -> "Key":
        """A new key with the same rights, which end when these do. What is over has none."""
        if (state := self.state(now_ms)) != "active":
            raise WrongState(f"the key is {state}: create another", state=state)
        return replace(self, id=key_id, created_ms=now_ms)

    def encode(self) -> bytes:
        return orjson.dumps(self.view(), option=orjson.OPT_INDENT_2)

    @classmethod
    def decode(cls, data: bytes) -> "Key":
        """What `encode` wrote, by this version or another. Raises `CallerError` for anything else.

        What a later version knows and we do not (a field, a pool, a scope) is of no interest: it gives no right here.
        But what is not known in its network may forbid something, so that the whole key is not to be read.
        """
        fields = Fields.parse(data)
        key_id = fields.text("id", max_chars=64)
        if not re.fullmatch(r"[0-9a-f]{64}", key_id):
            raise BadField("id", key_id, "must be a SHA-256 in hex")
        created_ms = fields.integer("created_ms", low=0, high=1 << 53)
        active = fields.flag("active", default=True)
        asked = KeyAsked.read(fields, only_known=False)
        return asked.key(key_id, created_ms=created_ms, active=active)


@dataclass(frozen=True)
class KeyAsked:
    """What a new key is asked to be."""

    owner: str
    name: str
    plan: str
    pools: Pools
    scopes: tuple[Scope, ...]
    rate: int
    expires_ms: int | None
    network: Network | None = None

    @classmethod
    def parse(cls, body: bytes) -> "KeyAsked":
        fields = Fields.parse(body)
        asked = cls.read(fields)
        fields.end()
        return asked

    @classmethod
    def read(cls, fields: Fields, *, only_known: bool = True) -> "KeyAsked":
        """`only_known`: a pool or a scope that we do not know is refused, not passed over."""
        return cls(
            owner=owner_name(fields.text("owner", max_chars=64, pattern=OWNER.pattern)),
            name=fields.text("name", max_chars=64, default=""),
            plan=fields.text("plan", max_chars=32, default="default"),
            pools=_pools(fields, only_known=only_known),
            scopes=_scopes(fields, only_known=only_known),
            rate=fields.integer("rate", low=1, high=MAX_RATE, default=DEFAULT_RATE),
            expires_ms=fields.integer("expires_ms", low=1, high=1 << 53, default=None),
            network=_network(fields),
        )

    def key(self, key_id: str, *, created_ms: int, active: bool = True) -> Key:
        return Key(
            id=key_id,
            owner=self.owner,
            name=self.name,
            plan=self.plan,
            pools=self.pools,
            scopes=self.scopes,
            rate=self.rate,
            created_ms=created_ms,
            expires_ms=self.expires_ms,
            active=active,
            network=self.network,
        )


class NoKey(CallerError):
    """The request has no key, or one that is not known, not active or over."""

    status = 401
    code = "bad_key"


class Forbidden(CallerError):
    """The key is good, and not for this."""

    status = 403
    code = "forbidden"


def rotation_grace(fields: Fields) -> int:
    """For how many seconds a key that gets a new secret goes on working with the old one."""
    return fields.integer("grace_sec", low=0, high=MAX_GRACE_S, default=USUAL_GRACE_S)


def new_secret(entropy: Callable[[int], bytes]) -> str:
    return f"wrn_{entropy(SECRET_BYTES).hex()}"


def key_id(secret: str) -> str:
    """The id of the key whose secret this is: the same digits are the same key, after `wrn_` and after `e2b_`."""
    found = SECRET.fullmatch(secret)
    if found is None:
        raise NoKey("a key is 'wrn_' and 40 hexadecimal digits")
    return hashlib.sha256(found[1].encode()).hexdigest()


def _pools(fields: Fields, *, only_known: bool) -> Pools:
    asked = fields.inner("pools")
    usual = Pools()
    sizes = {name: asked.integer(name, low=0, high=MAX_POOL, default=default) for name, default in vars(usual).items()}
    if only_known:
        asked.end()
    return Pools(**sizes)


def _network(fields: Fields) -> Network | None:
    network = Network.read_from(fields)
    size = 0 if network is None else len(orjson.dumps(network.view()))
    if size > MAX_NETWORK_BYTES:
        raise BadField("network", f"{size} bytes", f"must have at most {MAX_NETWORK_BYTES} bytes as JSON")
    return network


def _scopes(fields: Fields, *, only_known: bool) -> tuple[Scope, ...]:
    """An empty list is a key that may do nothing, and not one that may do what is usual."""
    if not fields.has("scopes"):
        fields.raw("scopes", None)  # it may be null
        return USUAL_SCOPES
    choices = tuple(Scope) if only_known else ()
    names = fields.text_list("scopes", max_chars=16, max_count=MAX_SCOPES, choices=choices)
    return tuple(Scope(name) for name in dict.fromkeys(names) if name in set(Scope))
