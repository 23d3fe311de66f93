"""What the gateway tells, as plain values. Fields that are not known are skipped: old clients read new replies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from warren.errors import ProtocolError, WarrenError

T = TypeVar("T")
OVER = ("stopped", "error")  # states that a sandbox does not leave


@dataclass(frozen=True)
class HostRule:
    """A name, or with `*.` all names below one, at these ports: 80 and 443 if none are said.

    With methods or paths only plain HTTP is allowed, at port 80 if none is said. A path may end in `*`.
    """

    host: str
    ports: Sequence[int] = ()
    methods: Sequence[str] = ()
    paths: Sequence[str] = ()


@dataclass(frozen=True)
class NetRule:
    """Addresses of IPv4 at one port, as `10.0.0.0/8`."""

    cidr: str
    port: int


@dataclass(frozen=True)
class Network:
    """What a sandbox may reach. Without a policy it is `list` if something is allowed here, and else `deny`."""

    policy: str | None = None  # "deny", "registries", "list" or "open"
    allow: Sequence[HostRule] = ()
    allow_addresses: Sequence[NetRule] = ()
    hold_sec: int = 0  # for so long a connection that nothing allows waits for a change of the policy
    # connections, connects_per_sec, idle_sec, up_mb, down_mb; what is None or not there is as the host has it
    limits: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Within:
    """A policy that holds for a sandbox besides its own, and can only take away: the host's, the key's, the image's."""

    level: str
    network: Network


@dataclass(frozen=True)
class Reach:
    """The policy of a sandbox, and those that it is within."""

    network: Network
    within: tuple[Within, ...] = ()


@dataclass(frozen=True)
class HeldWorkspace:
    """What a sandbox's /workspace was made from, and where it is saved."""

    name: str | None = None  # None: it is not saved
    from_version: int | None = None  # that it was made from
    saved_version: int | None = None  # the last one that this sandbox saved
    template: str | None = None  # that it was made from


@dataclass(frozen=True)
class Info:
    """A sandbox as it was when it was asked for. Times are Unix milliseconds."""

    id: str
    state: str
    image: str
    vcpus: int
    memory_mb: int
    disk_mb: int
    created_ms: int
    owner: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    started_ms: int | None = None
    paused_ms: int | None = None
    hibernated: Mapping[str, Any] | None = None  # in the object store: bytes, at_ms, kind
    ended_ms: int | None = None
    expires_ms: int | None = None
    rules: Mapping[str, Any] = field(default_factory=dict)  # what happens to it by itself
    next: Mapping[str, Any] | None = None  # what will happen next by itself: action, at_ms, why
    public_ports: tuple[int, ...] = ()
    network: Network | None = None  # what it may reach; None: its host does not say
    workspace: HeldWorkspace | None = None  # None: its files are its own, and are gone with it
    reason: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def is_saved(self) -> bool:
        """Its workspace is saved, at the end at the latest."""
        return self.workspace is not None and self.workspace.name is not None


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list. `next` asks for the part behind it."""

    rows: list[T]
    next: str | None = None
    incomplete: tuple[str, ...] = ()  # hosts that could not be asked


@dataclass(frozen=True)
class Started:
    """The command runs; `pid` is its number in the sandbox."""

    pid: int


@dataclass(frozen=True)
class Stdout:
    data: bytes

    @property
    def text(self) -> str:
        """`data` as text. A character may be split between two pieces: join the bytes if that matters."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Stderr(Stdout):
    pass


@dataclass(frozen=True)
class Exited:
    """The command ended. One that was killed has no exit code, but a signal's name."""

    exit_code: int | None
    signal: str | None
    duration_ms: int


Said = Started | Stdout | Stderr | Exited


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it said."""

    exit_code: int | None
    stdout: str
    stderr: str
    signal: str | None = None
    duration_ms: int = 0
    is_truncated: bool = False  # it said more than was asked to be kept

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def check(self) -> "Result":
        """Itself, or `CommandFailed`."""
        if not self.ok:
            raise CommandFailed(self)
        return self


class CommandFailed(WarrenError):
    """A command that was to succeed did not."""

    code = "command_failed"

    def __init__(self, result: Result) -> None:
        how = f"signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
        last = result.stderr.strip().rpartition("\n")[2]
        super().__init__(f"the command ended with {how}" + (f": {last[:200]}" if last else ""))
        self.result = result


@dataclass(frozen=True)
class Event:
    """Something that happened to a sandbox. `seq` counts from 1 without gaps.

    `by` is who told it, "host" or "guest": a program in the sandbox may tell anything.
    """

    seq: int
    kind: str
    at_ms: int
    data: Mapping[str, Any]
    by: str = "host"
    id: int = 0
    stream: str = ""


@dataclass(frozen=True)
class Connection:
    """Something that a sandbox tried to reach. Of one that is open still, `verdict` is "open" and `seq` is 0."""

    seq: int = 0
    at_ms: int = 0
    verdict: str = "open"  # or "allowed", which is over now, or "refused"
    via: str = ""  # "connect", "http", "tls", "tcp", "dns" or "packet"
    name: str | None = None
    address: str | None = None
    port: int | None = None
    rule: str | None = None  # that allowed it
    why: str | None = None  # it was refused, or cut
    up: int = 0  # bytes from the sandbox
    down: int = 0  # bytes to it
    duration_ms: int | None = None
    times: int = 1  # the same refusals at once are one


@dataclass(frozen=True)
class Transfer:
    """A file that was carried: how much, and the SHA-256 of all its bytes in hex."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Ticket:
    """Leave to attach one terminal, once and soon, at the sandbox's own host."""

    url: str
    ticket: str = field(repr=False)
    expires_ms: int = 0
    ca: str | None = None  # who vouches for that host, if not the public authorities


@dataclass(frozen=True)
class Key:
    """The record of an API key."""

    id: str
    owner: str
    name: str = ""
    plan: str = ""
    pools: Mapping[str, int] = field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    rate: int = 0
    created_ms: int = 0
    expires_ms: int | None = None
    active: bool = True
    network: Network | None = None  # what its sandboxes may reach, and at most; None: it says nothing


@dataclass(frozen=True)
class NewKey:
    """A key that was made just now. Nobody can show its secret again."""

    key: Key
    secret: str = field(repr=False)


def read(kind: type[T], value: Any) -> T:
    """`value` as a `kind`: the fields that it has, the others as they are by default."""
    if not isinstance(value, Mapping):
        raise ProtocolError(f"the reply is not a JSON object but {type(value).__name__}")
    names = kind.__dataclass_fields__  # type: ignore[attr-defined]
    given = {name: _plain(item) for name, item in value.items() if name in names}
    try:
        return kind(**given)
    except TypeError as error:
        raise ProtocolError(f"the reply lacks something: {error}") from None


def read_info(value: Any) -> Info:
    info = read(Info, value)
    return replace(
        info,
        network=None if info.network is None else read_network(info.network),
        workspace=None if info.workspace is None else read(HeldWorkspace, info.workspace),
    )


def read_key(value: Any) -> Key:
    key = read(Key, value)
    return replace(key, network=None if key.network is None else read_network(key.network))


def read_network(value: Any) -> Network:
    network = read(Network, value)
    return replace(
        network,
        allow=tuple(read(HostRule, rule) for rule in network.allow),
        allow_addresses=tuple(read(NetRule, net) for net in network.allow_addresses),
    )


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
