"""API keys: the secret that a client has, and the record that is all that anyone else has of it."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import orjson

from contract.errors import BadField, CallerError
from contract.fields import Fields
from contract.models import OWNER, owner_name

SECRET = re.compile(r"(?:wrn|e2b)_([0-9a-f]{40})")
SECRET_BYTES = 20
MAX_POOL = 1 << 40
MAX_RATE = 1_000_000
DEFAULT_RATE = 50
MAX_GRACE_S = 30 * 24 * 3600


class Scope(StrEnum):
    SANDBOXES = "sandboxes"
    TASKS = "tasks"
    ADMIN = "admin"


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
    scopes: tuple[Scope, ...] = (Scope.SANDBOXES, Scope.TASKS)
    rate: int = DEFAULT_RATE  # requests a second, at each gateway; twice as many at once
    created_ms: int = 0
    expires_ms: int | None = None
    active: bool = True

    def view(self) -> dict[str, Any]:
        """The record as it is told and kept."""
        return asdict(self)

    def encode(self) -> bytes:
        return orjson.dumps(self.view(), option=orjson.OPT_INDENT_2)

    @classmethod
    def decode(cls, data: bytes) -> "Key":
        """What `encode` wrote, by this version or another. Raises `CallerError` for anything else."""
        fields = Fields.parse(data)
        key_id = fields.text("id", max_chars=64)
        if not re.fullmatch(r"[0-9a-f]{64}", key_id):
            raise BadField("id", key_id, "must be a SHA-256 in hex")
        created_ms = fields.integer("created_ms", low=0, high=1 << 53)
        active = fields.flag("active", default=True)
        asked = KeyAsked.read(fields)
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

    @classmethod
    def parse(cls, body: bytes) -> "KeyAsked":
        fields = Fields.parse(body)
        asked = cls.read(fields)
        fields.end()
        return asked

    @classmethod
    def read(cls, fields: Fields) -> "KeyAsked":
        return cls(
            owner=owner_name(fields.text("owner", max_chars=64, pattern=OWNER.pattern)),
            name=fields.text("name", max_chars=64, default=""),
            plan=fields.text("plan", max_chars=32, default="default"),
            pools=_pools(fields),
            scopes=_scopes(fields),
            rate=fields.integer("rate", low=1, high=MAX_RATE, default=DEFAULT_RATE),
            expires_ms=fields.integer("expires_ms", low=1, high=1 << 53, default=None),
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
    return fields.integer("grace_sec", low=0, high=MAX_GRACE_S, default=0)


def new_secret(entropy: Callable[[int], bytes]) -> str:
    return f"wrn_{entropy(SECRET_BYTES).hex()}"


def key_id(secret: str) -> str:
    """The id of the key whose secret this is: the same digits are the same key, after `wrn_` and after `e2b_`."""
    found = SECRET.fullmatch(secret)
    if found is None:
        raise NoKey("a key is 'wrn_' and 40 hexadecimal digits")
    return hashlib.sha256(found[1].encode()).hexdigest()


def _pools(fields: Fields) -> Pools:
    asked = fields.inner("pools")
    usual = Pools()
    sizes = {name: asked.integer(name, low=0, high=MAX_POOL, default=default) for name, default in vars(usual).items()}
    asked.end()
    return Pools(**sizes)


def _scopes(fields: Fields) -> tuple[Scope, ...]:
    names = fields.text_list("scopes", max_chars=16, max_count=len(Scope), choices=tuple(Scope))
    return tuple(Scope(name) for name in names) or (Scope.SANDBOXES, Scope.TASKS)
