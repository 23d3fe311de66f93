"""What a sandbox may reach: a policy as a request, a key or an image asks for it.

A policy is one of four, and what it has besides:

- `deny`: nothing.
- `registries`: where packages come from, as the host's own clients are set up.
- `list`: what is allowed here by name or by address, and nothing else.
- `open`: every public address, and the registries.

Policies of several levels (host, key, image, request) hold together: what one of them refuses is refused.
"""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from contract.errors import BadField
from contract.fields import Fields

MAX_RULES = 256
MAX_PORTS = 32
MAX_PATHS = 32
MAX_PATH_CHARS = 512
MAX_NAME_CHARS = 253
MAX_HOLD_S = 3600
MAX_MB = 1 << 30
WEB_PORTS = (80, 443)
PLAIN_PORTS = (80,)

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
# The last label begins with a letter: what ends in a number is an address in one of its many forms, and not a name.
HOST = rf"(?:\*\.)?(?:{_LABEL}\.)*[A-Za-z](?:[A-Za-z0-9-]{{0,61}}[A-Za-z0-9])?"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
CIDR = rf"{_OCTET}(?:\.{_OCTET}){{3}}/(?:3[0-2]|[12]?[0-9])"
PATH = r"/[!-)+-~]*\*?"  # what can be seen in ASCII; a star only at the end
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Mode(StrEnum):
    DENY = "deny"
    REGISTRIES = "registries"
    LIST = "list"
    OPEN = "open"


@dataclass(frozen=True)
class HostRule:
    """A name, or all names that end like `*.…`, at some ports.

    With methods or paths only plain HTTP is allowed, for nobody sees those of an encrypted request. A path ends in a
    star if more may follow.
    """

    host: str
    ports: tuple[int, ...] = WEB_PORTS
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = f"{self.host}:{_said(self.ports)}"
        if self.methods or self.paths:
            said = f"{_said(self.methods) or '*'} {said} {_said(self.paths) or '/*'}"
        return said

    @classmethod
    def read(cls, fields: Fields) -> "HostRule":
        host = fields.text("host", max_chars=MAX_NAME_CHARS, pattern=HOST)
        ports = fields.integer_list("ports", low=1, high=65_535, max_count=MAX_PORTS)
        methods = fields.text_list("methods", max_chars=16, max_count=len(METHODS), choices=METHODS)
        paths = fields.text_list("paths", max_chars=MAX_PATH_CHARS, max_count=MAX_PATHS, pattern=PATH)
        fields.end()
        usual = PLAIN_PORTS if methods or paths else WEB_PORTS
        return cls(host.lower(), tuple(sorted(set(ports))) or usual, tuple(methods), tuple(paths))


@dataclass(frozen=True)
class NetRule:
    """Addresses of IPv4 at one port, for who dials them by their numbers. A name needs a rule of its own."""

    cidr: str
    port: int

    def __str__(self) -> str:
        return f"{self.cidr}:{self.port}"

    @classmethod
    def read(cls, fields: Fields) -> "NetRule":
        cidr = fields.text("cidr", max_chars=18, pattern=CIDR)
        port = fields.integer("port", low=1, high=65_535)
        fields.end()
        return cls(cidr, port)


@dataclass(frozen=True)
class Limits:
    """How much of the network a sandbox may use. What is None has no limit."""

    connections: int = 256  # at a time
    connects_per_sec: int = 100  # twice as many at once
    idle_sec: int = 600  # then a connection on which nothing moves is closed
    up_mb: int | None = None  # of all connections together, since the sandbox began to run
    down_mb: int | None = None

    def within(self, most: "Limits") -> "Limits":
        """The smaller of the two, each."""
        pairs = {name: (value, getattr(most, name)) for name, value in vars(self).items()}
        smaller = {name: min((one for one in pair if one is not None), default=None) for name, pair in pairs.items()}
        return Limits(**smaller)  # type: ignore[arg-type]


@dataclass(frozen=True)
class LimitsAsked:
    """The limits that are asked for; what is None is for others to say."""

    connections: int | None = None
    connects_per_sec: int | None = None
    idle_sec: int | None = None
    up_mb: int | None = None
    down_mb: int | None = None

    @classmethod
    def read(cls, fields: Fields) -> "LimitsAsked":
        asked = cls(
            connections=fields.integer("connections", low=1, high=4096, default=None),
            connects_per_sec=fields.integer("connects_per_sec", low=1, high=1000, default=None),
            idle_sec=fields.integer("idle_sec", low=1, high=86_400, default=None),
            up_mb=fields.integer("up_mb", low=1, high=MAX_MB, default=None),
            down_mb=fields.integer("down_mb", low=1, high=MAX_MB, default=None),
        )
        fields.end()
        return asked

    def within(self, most: Limits) -> Limits:
        """What is asked for here, and never more than `most`."""
        asked = {name: value for name, value in vars(self).items() if value is not None}
        return Limits(**{**vars(most), **asked}).within(most)


@dataclass(frozen=True)
class Network:
    """A policy. `allow` and `allow_addresses` are what it has besides what `policy` says; with `deny` they are nothing.

    `hold_sec`: for so long a connection that nothing allows waits for somebody to change the policy.
    """

    policy: Mode = Mode.DENY
    allow: tuple[HostRule, ...] = ()
    allow_addresses: tuple[NetRule, ...] = ()
    hold_sec: int = 0
    limits: LimitsAsked = field(default_factory=LimitsAsked)

    @classmethod
    def read(cls, fields: Fields) -> "Network":
        """Without a policy it is `list` if something is listed, and `deny` if nothing is."""
        asked = fields.text("policy", max_chars=16, choices=tuple(Mode), default=None)
        allow = tuple(HostRule.read(each) for each in fields.inner_list("allow", max_count=MAX_RULES))
        nets = tuple(NetRule.read(each) for each in fields.inner_list("allow_addresses", max_count=MAX_RULES))
        hold_sec = fields.integer("hold_sec", low=0, high=MAX_HOLD_S, default=0)
        limits = LimitsAsked.read(fields.inner("limits"))
        mode = Mode(asked) if asked else Mode.LIST if allow or nets else Mode.DENY
        return cls(mode, allow, nets, hold_sec, limits)

    @classmethod
    def read_from(cls, fields: Fields, name: str = "network") -> "Network | None":
        """The policy in a field of a larger request, if it has one."""
        if not fields.has(name):
            fields.raw(name, None)  # it may be null
            return None
        within = fields.inner(name)
        asked = cls.read(within)
        within.end()
        return asked

    def view(self) -> dict[str, Any]:
        """The reply's JSON, and what `decode` reads."""
        return asdict(self)

    @classmethod
    def decode(cls, view: dict[str, Any], within: str = "network") -> "Network":
        """What `view` wrote. Raises `BadField` for anything else."""
        if not isinstance(view, dict):
            raise BadField(within, view, "must be an object")
        fields = Fields(view, f"{within}.")
        network = cls.read(fields)
        fields.end()
        return network


@dataclass(frozen=True)
class Within:
    """A policy that a sandbox never gets out of, and whose it is: its key's or its image's."""

    level: str
    network: Network

    def view(self) -> dict[str, Any]:
        return {"level": self.level, "network": self.network.view()}


def _said(items: tuple[object, ...]) -> str:
    return ",".join(map(str, items))
