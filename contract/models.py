"""The requests and replies of the sandbox API, as what they mean rather than as JSON.

`parse` checks a request as a whole; what it returns needs no further checks. Limits that every host has
are here; limits that one host has (its images, its size) are checked where that is known.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any

from contract.errors import BadField
from contract.fields import Fields
from contract.network import Network, Within
from contract.states import State
from contract.workspaces import MAX_NAME_CHARS, NAME, Workspace

MAX_ENV = 256
MAX_ENV_CHARS = 32_768
MAX_METADATA = 64
MAX_METADATA_CHARS = 1_024
MAX_TIMEOUT_S = 30 * 24 * 3600
USUAL_TIMEOUT_S = 3600  # of a sandbox for which nobody said anything: caller, owner's rules, operator
MAX_ARG_CHARS = 131_072  # the kernel's own limit for one argument
MAX_ARGS = 4_096
MAX_PATH_BYTES = 4_096
MAX_STDIN_CHARS = 1 << 20
MAX_PUBLIC_PORTS = 32
MAX_PORT = 65_535
# What of a sandbox goes to the store: all that it is, or its files alone, without what runs.
MACHINE, FILES = "machine", "files"
HIBERNATE_KINDS = (MACHINE, FILES)
LOCAL_OWNER = "local"  # who asks without saying who they are
OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
USER_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(frozen=True)
class Shape:
    """What a machine is made of: one snapshot and one share of the pool exist per shape."""

    image: str
    vcpus: int
    memory_mb: int
    disk_mb: int

    def __str__(self) -> str:
        return f"{self.image}-{self.vcpus}c-{self.memory_mb}m-{self.disk_mb}d"


# What machines of the images that come with Warren have if no size is asked for: as their image.toml says.
USUAL_SHAPES = (Shape("python", 1, 512, 4096), Shape("minimal", 1, 256, 2048))


@dataclass(frozen=True)
class ShapeLimits:
    """The largest machine that this host makes."""

    vcpus: int
    memory_mb: int
    disk_mb: int


@dataclass(frozen=True)
class Caller:
    """Who asks for something, and in which request."""

    owner: str = LOCAL_OWNER
    request: str | None = None  # its id; None: the host does it by itself
    network: Network | None = None  # the policy of the key, of which nothing gets out


@dataclass(frozen=True)
class Rules:
    """What happens to a sandbox by itself."""

    timeout_sec: int
    on_timeout: str = "destroy"  # or "pause"
    idle_sec: int | None = None  # pause after so long without output, request or terminal; None: never
    hibernate_sec: int | None = None  # to the store after so long in pause; None: never
    hibernate_kind: str = MACHINE  # what goes there then; or "files"
    paused_sec: int | None = None  # destroy after so long in pause, there or in the store; None: never
    auto_resume: bool = False  # on the next request


@dataclass(frozen=True)
class RulesAsked:
    """The rules that a request or an owner asks for; what is None is for the next level to say."""

    timeout_sec: int | None = None
    on_timeout: str | None = None
    idle_sec: int | None = None
    hibernate_sec: int | None = None
    hibernate_kind: str | None = None
    paused_sec: int | None = None
    auto_resume: bool | None = None

    @classmethod
    def read(cls, fields: Fields) -> "RulesAsked":
        return cls(
            timeout_sec=fields.integer("timeout_sec", low=1, high=MAX_TIMEOUT_S, default=None),
            on_timeout=fields.text("on_timeout", max_chars=16, choices=("pause", "destroy"), default=None),
            idle_sec=fields.integer("idle_sec", low=1, high=MAX_TIMEOUT_S, default=None),
            hibernate_sec=fields.integer("hibernate_sec", low=1, high=MAX_TIMEOUT_S, default=None),
            hibernate_kind=fields.text("hibernate_kind", max_chars=16, choices=HIBERNATE_KINDS, default=None),
            paused_sec=fields.integer("paused_sec", low=1, high=MAX_TIMEOUT_S, default=None),
            auto_resume=fields.flag("auto_resume", default=None),
        )

    def over(self, base: Rules) -> Rules:
        """`base`, with what is asked for here in its place."""
        return replace(base, **{name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class Next:
    """What will happen to a sandbox by itself, unless something else happens first."""

    action: str  # "pause", "hibernate" or "destroy"
    at_ms: int
    why: str  # "timeout", "idle" or "paused"


@dataclass(frozen=True)
class Hibernated:
    """Where a sandbox is in the object store."""

    key: str  # of its manifest
    sha256: str  # of that
    bytes: int  # of all of it
    at_ms: int  # since when
    kind: str = MACHINE  # what of it: all that it was, or its files alone

    @property
    def prefix(self) -> str:
        """What all of its keys begin with."""
        return self.key[: self.key.rindex("/") + 1]

    def view(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "at_ms": self.at_ms, "kind": self.kind}


@dataclass(frozen=True)
class CreateSandbox:
    image: str | None  # the host's default
    vcpus: int | None
    memory_mb: int | None
    disk_mb: int | None
    rules: RulesAsked
    env: dict[str, str] = field(repr=False)  # may hold secrets: never in a log
    metadata: dict[str, str]
    public_ports: tuple[int, ...] = ()
    network: Network | None = None  # as the key, the image or the host says
    workspace: str | None = None  # the name of what its files are pulled from and saved to
    template: str | None = None  # what a workspace without versions begins with
    task: str | None = None  # for which a host makes it; no client says so

    @classmethod
    def parse(cls, body: bytes, limits: ShapeLimits) -> "CreateSandbox":
        fields = Fields.parse(body)
        request = cls.read(fields, limits)
        fields.end()
        return request

    @classmethod
    def read(cls, fields: Fields, limits: ShapeLimits) -> "CreateSandbox":
        # Sizes come in steps, because each combination of sizes has a snapshot of its own.
        return cls(
            image=fields.text("image", max_chars=64, default=None),
            vcpus=fields.integer("vcpus", low=1, high=limits.vcpus, default=None),
            memory_mb=fields.integer("memory_mb", low=128, high=limits.memory_mb, step=64, default=None),
            disk_mb=fields.integer("disk_mb", low=128, high=limits.disk_mb, step=64, default=None),
            rules=RulesAsked.read(fields),
            env=_environment(fields),
            metadata=fields.texts("metadata", max_chars=MAX_METADATA_CHARS, max_count=MAX_METADATA),
            public_ports=_public_ports(fields),
            network=Network.read_from(fields),
            workspace=fields.text("workspace", max_chars=MAX_NAME_CHARS, pattern=NAME, default=None),
            template=fields.text("template", max_chars=MAX_NAME_CHARS, pattern=NAME, default=None),
        )


@dataclass(frozen=True)
class Exec:
    """A command to run. `argv` starts with the program; a command line has been given to bash."""

    argv: list[str]
    env: dict[str, str] = field(repr=False)
    cwd: str | None
    user: str | None  # the machine's ordinary user
    stdin: bytes | None = field(repr=False)
    timeout_ms: int | None

    @classmethod
    def parse(cls, body: bytes) -> "Exec":
        fields = Fields.parse(body)
        request = cls.read(fields)
        fields.end()
        return request

    @classmethod
    def read(cls, fields: Fields) -> "Exec":
        stdin = fields.text("stdin", max_chars=MAX_STDIN_CHARS, default=None)
        timeout_sec = fields.integer("timeout_sec", low=1, high=MAX_TIMEOUT_S, default=None)
        return cls(
            argv=_argv(fields),
            env=_environment(fields),
            cwd=fields.text("cwd", max_chars=MAX_PATH_BYTES, default=None),
            user=user_name(fields.text("user", max_chars=32, pattern=USER_NAME.pattern, default=None)),
            stdin=None if stdin is None else stdin.encode(),
            timeout_ms=None if timeout_sec is None else timeout_sec * 1000,
        )


@dataclass(frozen=True)
class Sandbox:
    """A sandbox as the ledger has it."""

    id: str
    state: State
    shape: Shape
    metadata: dict[str, str]
    created_ms: int
    expires_ms: int | None  # when its time is up; moved by a new timeout and by a resume
    rules: Rules
    owner: str = LOCAL_OWNER
    started_ms: int | None = None
    paused_ms: int | None = None  # since when, until it runs again or has ended
    ended_ms: int | None = None
    machine: str | None = None
    generation: int = 0  # how often its machine was told who it is
    reason: str | None = None
    public_ports: tuple[int, ...] = ()  # that anybody may reach through a gateway; in order, each once
    network: Network = field(default_factory=Network)  # what it may reach; the levels above may allow less
    within: tuple[Within, ...] = ()  # those of its key and its image, which it never gets out of
    hibernated: Hibernated | None = None  # where it is in the store, while it is there
    workspace: Workspace | None = None  # what its files were made from, and where they are saved
    next: Next | None = None  # not in the ledger: it follows from the rest and from what is going on

    def lost(self, reason: str) -> str:
        """The reason of an end that nobody chose: what was saved of it is told, too."""
        return f"{reason}; {self.workspace.last}" if self.workspace is not None and self.is_kept else reason

    @property
    def is_kept(self) -> bool:
        """Whether its workspace has a name, and is saved."""
        return self.workspace is not None and self.workspace.name is not None

    def view(self) -> dict[str, Any]:
        """The reply's JSON. The environment is never part of it."""
        return {
            "id": self.id,
            "state": self.state,
            "owner": self.owner,
            "image": self.shape.image,
            "vcpus": self.shape.vcpus,
            "memory_mb": self.shape.memory_mb,
            "disk_mb": self.shape.disk_mb,
            "metadata": self.metadata,
            "public_ports": list(self.public_ports),
            "network": self.network.view(),
            "workspace": None if self.workspace is None else self.workspace.view(),
            "created_ms": self.created_ms,
            "started_ms": self.started_ms,
            "paused_ms": self.paused_ms,
            "hibernated": None if self.hibernated is None else self.hibernated.view(),
            "ended_ms": self.ended_ms,
            "expires_ms": self.expires_ms,
            "rules": vars(self.rules),
            "next": None if self.next is None else vars(self.next),
            "reason": self.reason,
        }


def file_path(path: str, name: str = "path") -> str:
    """`path`, if it may be sent to a guest: absolute, `~…`, or relative to the user's home, and with no `..`."""
    if not path:
        raise BadField(name, path, "is required")
    if "\0" in path:
        raise BadField(name, path, "must not contain a NUL")
    if len(path.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        raise BadField(name, path, f"must have at most {MAX_PATH_BYTES} bytes")
    if ".." in path.split("/"):
        raise BadField(name, path, "must not have a '..' part")
    return path


def owner_name(name: str | None) -> str:
    if name is None:
        return LOCAL_OWNER
    if not OWNER.fullmatch(name):
        raise BadField("owner", name, "must be letters, digits and _.@-, at most 64")
    return name


def user_name(name: str | None) -> str | None:
    if name is not None and not USER_NAME.fullmatch(name):
        raise BadField("user", name, "must be a user's name")
    return name


def _environment(fields: Fields) -> dict[str, str]:
    return fields.texts("env", max_chars=MAX_ENV_CHARS, max_count=MAX_ENV, names=ENV_NAME.pattern)


def _public_ports(fields: Fields) -> tuple[int, ...]:
    ports = fields.integer_list("public_ports", low=1, high=MAX_PORT, max_count=MAX_PUBLIC_PORTS)
    return tuple(sorted(set(ports)))


def _argv(fields: Fields) -> list[str]:
    cmd = fields.line_or_list("cmd", max_chars=MAX_ARG_CHARS, max_count=MAX_ARGS)
    return ["/bin/bash", "-lc", cmd] if isinstance(cmd, str) else cmd
