"""What poold is told at its start, checked as a whole. Read from the environment in `__main__` and nowhere else."""

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contract.errors import BadField
from contract.hosts import NAME, host_address
from contract.models import MAX_TIMEOUT_S, USUAL_TIMEOUT_S, Rules, ShapeLimits
from contract.network import CIDR, HOST, MAX_MB, HostRule, Limits, Mode, NetRule
from contract.settings import BadSetting
from contract.tasks import MAX_RETRIES, Checkpointing
from poold.errors import ConfigError
from poold.git_author import USUAL, GitAuthor, read_author
from poold.places import Places, S3Config
from poold.workspace_config import WorkspacesConfig

DEFAULT_STATE_DIR = Path("/var/lib/warren")
ENGINES = ("qemu", "local")
DURABILITIES = ("replicated", "local")
GROUP = re.compile(r"[a-z][a-z0-9-]{0,63}")
POOL_ENTRY = re.compile(r"([a-z][a-z0-9_-]*)=([0-9]{1,6})(?:-([0-9]{1,6}))?")
BRANCH_PATTERN = re.compile(r"[A-Za-z0-9._/*?@+-]{1,255}")
IMDS = re.compile(r"off|auto|http://[0-9.]{7,15}(?::[0-9]{1,5})?")
USUAL_PROTECTED = "main,master,release/*"


@dataclass(frozen=True)
class PoolSize:
    """How many machines of one image are kept warm: never fewer than `floor`, never more than `ceiling`."""

    floor: int
    ceiling: int


@dataclass(frozen=True)
class Pki:
    """A folder that `pooldctl pki` made for this host. What is in it may be replaced at any time."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        return self.folder / "host.pem"

    @property
    def key(self) -> Path:
        return self.folder / "host.key"

    @property
    def tickets(self) -> Path:
        """The public keys of those who sign tickets."""
        return self.folder / "tickets.pub"

    @property
    def seal(self) -> Path:
        """With what hosts of a cluster seal what they put into the store for each other."""
        return self.folder / "seal.key"

    @property
    def has_certificates(self) -> bool:
        return all(path.is_file() for path in (self.ca, self.certificate, self.key))


@dataclass(frozen=True)
class EgressConfig:
    """What the operator says of the network."""

    most: Mode  # that any sandbox of this host may have
    limits: Limits
    registries: tuple[str, ...]  # besides those of the host's own clients
    private_hosts: tuple[HostRule, ...]  # what may have a private address
    private_nets: tuple[NetRule, ...]
    guest_ca: Path | None  # a certificate that guests trust
    clients: Mapping[str, str] = field(repr=False)  # the environment, for what it says of clients of registries


@dataclass(frozen=True)
class TasksConfig:
    """What the operator says of tasks."""

    store: Path  # what tasks leave behind
    is_shared: bool = False  # with other hosts
    secrets: Path | None = None  # a folder: OWNER/NAME and all/NAME
    author: GitAuthor = USUAL
    protected: tuple[str, ...] = ("main", "master", "release/*")  # branches that nothing is pushed to
    prices: Path | None = None  # of models, for agents that tell no dollars
    queue: int = 1000  # tasks that wait for room, at most
    archive_mb: int = 16_384  # of one task's workspace
    checkpoint: Checkpointing = field(default_factory=lambda: Checkpointing(25, 5))  # of tasks that do not say
    retries: int = 3  # likewise


@dataclass(frozen=True)
class Config:
    name: str  # of this host among the others
    host: str
    port: int
    advertise: str  # the address that gateways dial
    registry: Path | S3Config | None  # where this host's record is written
    pki: Pki | None
    is_tls: bool  # on the port; without it only loopback is served
    state_dir: Path  # the ledger, snapshots and drives; must survive a restart
    run_dir: Path  # pins of namespaces; empty after a boot
    images_dir: Path
    engine: str
    slots: int
    base_uid: int  # slot n runs as this plus n
    memory_budget_mb: int
    limits: ShapeLimits
    pool: Mapping[str, PoolSize]
    default_image: str
    rules: Rules  # of a sandbox whose request and whose owner do not say
    keep_sandboxes_days: int  # after their end
    keep_audit_days: int
    min_memory_mb: int  # that must be free on this host, or nothing new is started
    min_disk_mb: int
    cgroup: str  # the name of our control groups
    egress: EgressConfig
    tasks: TasksConfig
    workspaces: WorkspacesConfig
    store: Path | S3Config | None  # what hosts share; None: this one is alone
    lease_s: int  # how long this host goes on without the store
    imds: str  # where this host learns that it is to go: off, auto or an address
    durability: str  # what is acknowledged is in the store (replicated), or on this host's disk (local)
    environ: Mapping[str, str] = field(repr=False)  # for AWS's own settings, which other programs read, too
    guest_path: Path  # the guest's package, for the local engine

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], *, host_memory_mb: int, host_cpus: int, hostname: str = "localhost"
    ) -> "Config":
        """Everything is checked here; messages name the variable and the value."""
        try:
            return cls._read(environ, host_memory_mb, host_cpus, hostname)
        except BadSetting as error:
            raise ConfigError(str(error)) from None

    @classmethod
    def _read(cls, environ: Mapping[str, str], host_memory_mb: int, host_cpus: int, hostname: str) -> "Config":
        read = _Reader(environ)
        pki = read.pki("POOLD_PKI")
        is_tls = pki is not None and pki.has_certificates
        engine = read.one_of("POOLD_ENGINE", ENGINES, "qemu")
        host, port = read.listen("POOLD_LISTEN", "127.0.0.1:7070", may_be_any=is_tls and engine != "local")
        state_dir = Path(environ.get("POOLD_STATE_DIR", DEFAULT_STATE_DIR)).absolute()
        slots = read.integer("POOLD_SLOTS", 64, 1, 4096)
        store = read.store("POOLD_STORE")
        budget = read.integer("POOLD_MEMORY_MB", host_memory_mb * 8 // 10, 256, 1 << 30)
        return cls(
            name=read.host_name("POOLD_NAME", hostname.lower()),
            host=host,
            port=port,
            advertise=read.advertise("POOLD_ADVERTISE", host, port, is_tls=is_tls),
            registry=read.registry("POOLD_REGISTRY", store),
            pki=pki,
            is_tls=is_tls,
            state_dir=state_dir,
            run_dir=Path(environ.get("POOLD_RUN_DIR", "/run/warren")).absolute(),
            images_dir=Path(environ.get("POOLD_IMAGES", str(state_dir / "images"))).absolute(),
            engine=engine,
            slots=slots,
            base_uid=read.integer("POOLD_BASE_UID", 230_000, 1000, 1 << 30),
            memory_budget_mb=budget,
            limits=ShapeLimits(
                vcpus=read.integer("POOLD_MAX_VCPUS", min(255, max(4, host_cpus)), 1, 255),
                memory_mb=read.integer("POOLD_MAX_MEMORY_MB", min(8192, budget), 128, 1 << 30),
                disk_mb=read.integer("POOLD_MAX_DISK_MB", 20_480, 128, 1 << 30),
            ),
            pool=read.pool("POOLD_POOL", "host=1-4" if engine == "local" else "python=2-8"),
            default_image=environ.get("POOLD_DEFAULT_IMAGE", "host" if engine == "local" else "python"),
            guest_path=Path(environ.get("POOLD_GUEST", str(Path(__file__).parent.parent / "guest"))).absolute(),
            rules=Rules(timeout_sec=read.integer("POOLD_DEFAULT_TIMEOUT_SEC", USUAL_TIMEOUT_S, 1, MAX_TIMEOUT_S)),
            keep_sandboxes_days=read.integer("POOLD_KEEP_SANDBOXES_DAYS", 30, 1, 36_500),
            keep_audit_days=read.integer("POOLD_KEEP_AUDIT_DAYS", 365, 1, 36_500),
            min_memory_mb=read.integer("POOLD_MIN_MEMORY_MB", 512, 1, 1 << 40),
            min_disk_mb=read.integer("POOLD_MIN_DISK_MB", 2048, 1, 1 << 40),
            cgroup=read.group("POOLD_CGROUP", _group_of(state_dir)),
            egress=read.egress(),
            tasks=read.tasks(store if isinstance(store, Path) else state_dir / "store", isinstance(store, Path)),
            workspaces=WorkspacesConfig.read(read),
            store=store,
            lease_s=read.integer("POOLD_LEASE_SEC", 10, 2, 3600),
            imds=read.matching("POOLD_IMDS", IMDS, "off", told="be off, auto or http://ADDRESS"),
            durability=read.durability("POOLD_DURABILITY", store),
            environ=environ,
        )

    @property
    def socket(self) -> Path:
        """Where the operator is served."""
        return self.run_dir / "poold.sock"

    @property
    def front_dir(self) -> Path:
        """What stands behind the front listens here; nobody else may look in."""
        return self.run_dir / "front"

    @property
    def ledger_path(self) -> Path:
        return self.state_dir / "ledger.db"


def _group_of(state_dir: Path) -> str:
    """Two daemons on one host have two groups: each takes what is in its own for its own."""
    if state_dir == DEFAULT_STATE_DIR:
        return "warren"
    return f"warren-{hashlib.sha256(bytes(state_dir)).hexdigest()[:8]}"


class _Reader(Places):
    def egress(self) -> EgressConfig:
        usual = Limits()
        private = [self._private(entry) for entry in self._listed("POOLD_EGRESS_PRIVATE")]
        return EgressConfig(
            most=Mode(self.one_of("POOLD_EGRESS_MOST", ("deny", "registries", "open"), "open")),
            limits=Limits(
                connections=self.integer("POOLD_EGRESS_CONNECTIONS", usual.connections, 1, 4096),
                connects_per_sec=self.integer("POOLD_EGRESS_CONNECTS_PER_SEC", usual.connects_per_sec, 1, 1000),
                idle_sec=self.integer("POOLD_EGRESS_IDLE_SEC", usual.idle_sec, 1, 86_400),
                up_mb=self.integer("POOLD_EGRESS_UP_MB", 0, 0, MAX_MB) or None,
                down_mb=self.integer("POOLD_EGRESS_DOWN_MB", 0, 0, MAX_MB) or None,
            ),
            registries=self._listed("POOLD_REGISTRIES"),
            private_hosts=tuple(rule for rule in private if isinstance(rule, HostRule)),
            private_nets=tuple(rule for rule in private if isinstance(rule, NetRule)),
            guest_ca=self.path("POOLD_GUEST_CA"),
            clients=self._environ,
        )

    def _private(self, entry: str) -> HostRule | NetRule:
        name, _, port = entry.rpartition(":")
        if re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65_535:
            if re.fullmatch(HOST, name):
                return HostRule(name.lower(), (int(port),))
            if re.fullmatch(CIDR, name):
                return NetRule(name, int(port))
        raise BadSetting(f"POOLD_EGRESS_PRIVATE must be NAME:PORT or ADDRESS/BITS:PORT, got {entry!r}")

    def durability(self, name: str, store: Path | S3Config | None) -> str:
        chosen = self.one_of(name, DURABILITIES, "replicated" if isinstance(store, S3Config) else "local")
        if chosen == "replicated" and store is None:
            raise BadSetting(f"{name}=replicated needs a store: set POOLD_STORE to a folder or s3://BUCKET/PREFIX")
        return chosen

    def tasks(self, store: Path, is_shared: bool) -> TasksConfig:
        return TasksConfig(
            store=store,
            is_shared=is_shared,
            secrets=self._folder("POOLD_SECRETS"),
            author=read_author("POOLD_GIT_AUTHOR", self._environ.get("POOLD_GIT_AUTHOR")),
            protected=self._branches("POOLD_GIT_PROTECTED"),
            prices=self.path("POOLD_PRICES"),
            queue=self.integer("POOLD_TASKS_QUEUE", 1000, 1, 1_000_000),
            archive_mb=self.integer("POOLD_ARCHIVE_MB", 16_384, 1, 1 << 24),
            checkpoint=Checkpointing(
                steps=self.integer("POOLD_CHECKPOINT_STEPS", 25, 0, 1_000_000),
                minutes=self.integer("POOLD_CHECKPOINT_MINUTES", 5, 0, 10_080),
            ),
            retries=self.integer("POOLD_TASKS_RETRIES", 3, 0, MAX_RETRIES),
        )

    def _folder(self, name: str) -> Path | None:
        folder = self.path(name)
        if folder is not None and not folder.is_dir():
            raise BadSetting(f"{name} must be a folder, got {self._environ[name]!r}")
        return folder

    def _branches(self, name: str) -> tuple[str, ...]:
        """An empty text protects nothing."""
        listed = self._listed(name, USUAL_PROTECTED)
        if not all(BRANCH_PATTERN.fullmatch(pattern) for pattern in listed):
            raise BadSetting(f"{name} must be names of branches, with * and ?, got {self._environ[name]!r}")
        return listed

    def _listed(self, name: str, default: str = "") -> tuple[str, ...]:
        return tuple(filter(None, (part.strip() for part in self._environ.get(name, default).split(","))))

    def host_name(self, name: str, default: str) -> str:
        return self.matching(name, NAME, default, told="be small letters, digits, . and -, at most 63")

    def group(self, name: str, default: str) -> str:
        return self.matching(name, GROUP, default, told="be a short name of small letters, digits and -")

    def pki(self, name: str) -> Pki | None:
        folder = self.path(name)
        if folder is not None and not folder.is_dir():
            raise BadSetting(f"{name} must be a folder that 'pooldctl pki issue' made, got {self._environ[name]!r}")
        return None if folder is None else Pki(folder)

    def listen(self, name: str, default: str, *, may_be_any: bool) -> tuple[str, int]:
        """Without TLS, or with an engine that isolates nothing, an address on loopback."""
        text = self._environ.get(name, default)
        host, port = self.address(name, default)
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            raise BadSetting(f"{name} must be an IP address and a port, got {text!r}") from None
        if not address.is_loopback and not may_be_any:
            raise BadSetting(
                f"{name} must be a loopback address (127.0.0.1 or [::1]), got {text!r}; others need POOLD_PKI with"
                " ca.pem, host.pem and host.key, and an engine that isolates"
            )
        return host, port

    def advertise(self, name: str, host: str, port: int, *, is_tls: bool) -> str:
        """How gateways reach this host."""
        scheme = "https" if is_tls else "http"
        address = ipaddress.ip_address(host)
        text = self._environ.get(name)
        if text is None:
            if address.is_unspecified:
                raise BadSetting(f"{name} must be set, as {scheme}://ADDRESS:PORT: POOLD_LISTEN is every address")
            return f"{scheme}://{f'[{host}]' if address.version == 6 else host}:{port}"
        if not text.startswith(f"{scheme}://"):
            raise BadSetting(f"{name} must be {scheme}://ADDRESS:PORT, got {text!r}")
        try:
            return host_address(text, name)
        except BadField as error:
            raise BadSetting(str(error)) from None

    def pool(self, name: str, default: str) -> dict[str, PoolSize]:
        """`image=floor-ceiling` or `image=floor`, with commas between."""
        text = self._environ.get(name, default)
        sizes = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            match = POOL_ENTRY.fullmatch(entry)
            if match is None:
                raise BadSetting(f"{name} must be like 'python=2-8,minimal=1', got {entry!r}")
            floor = int(match[2])
            ceiling = int(match[3] or max(floor, 1))
            if ceiling < floor:
                raise BadSetting(f"{name}: the ceiling is below the floor in {entry!r}")
            sizes[match[1]] = PoolSize(floor, ceiling)
        return sizes
