"""Tasks: what a caller wants done by an agent, as requests and replies.

`CreateTask.read` checks a request as a whole, as far as that is possible without a host.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from contract.errors import BadField
from contract.fields import NOT_BLANK, Fields
from contract.ids import TASK
from contract.models import (
    ENV_NAME,
    MAX_ENV,
    MAX_ENV_CHARS,
    MAX_METADATA,
    MAX_METADATA_CHARS,
    MAX_TIMEOUT_S,
    CreateSandbox,
    RulesAsked,
    ShapeLimits,
)
from contract.network import Network
from contract.task_states import TaskState
from contract.workspaces import MAX_NAME_CHARS, NAME

AGENTS = ("mock", "claude", "codex", "cursor")
ASKABLE = ("mock", "claude")  # those that ask before they use a tool
MAX_PROMPT_CHARS = 1 << 20
SHOWN_PROMPT_CHARS = 2000
MAX_BODY_BYTES = 8 << 20  # a prompt of nothing but escapes takes six bytes a character
MAX_URL_CHARS = 2048
MAX_DEPTH = 1_000_000
MAX_TEXT_CHARS = 65_536  # of an answer or an instruction
MAX_RULES = 64
MAX_COUNT = 1 << 50
MAX_USD = 1_000_000.0
MAX_KEEP_MINUTES = 7 * 24 * 60
USUAL_STEPS = 200
USUAL_WALL_S = 3600
USUAL_OUTPUT_BYTES = 64 << 20
USUAL_SAME = 3
USUAL_PAUSE_AFTER_S = 300
MAX_RETRIES = 100
URL = r"https?://[!-~]+"
# What git takes for the name of a branch, a tag or a commit, without what it would read as something else.
REF = r"(?!-)(?!/)(?!.*(?:\.\.|@\{|//|\.lock$|\.lock/|/$|\.$))[A-Za-z0-9_./@+#=-]{1,200}"
SECRET_NAME = r"[A-Z_][A-Z0-9_]{0,63}"  # noqa: S105 — the form of a name
SECRET_FIELDS = ("repo", "env", "webhook")  # what is wrong with them is said without them
COMMAND_KINDS = ("approve", "reject", "answer", "instruct")
QUESTION_ID = r"[a-z]{2}-[0-9]{1,9}"


@dataclass(frozen=True)
class Caps:
    """What ends a task the moment that it is passed. What is None has no limit."""

    steps: int | None = USUAL_STEPS
    tokens: int | None = None  # read and written together, what a cache had included
    usd: float | None = None
    wall_sec: int = USUAL_WALL_S  # while it is not paused
    output_bytes: int = USUAL_OUTPUT_BYTES  # that the agent prints

    @classmethod
    def read(cls, fields: Fields) -> "Caps":
        return cls(
            steps=fields.integer("steps", low=1, high=MAX_COUNT, default=USUAL_STEPS),
            tokens=fields.integer("tokens", low=1, high=MAX_COUNT, default=None),
            usd=fields.number("usd", low=0.000001, high=MAX_USD, default=None),
            wall_sec=fields.integer("wall_sec", low=1, high=MAX_TIMEOUT_S, default=USUAL_WALL_S),
            output_bytes=fields.integer("output_bytes", low=1024, high=1 << 40, default=USUAL_OUTPUT_BYTES),
        )


@dataclass(frozen=True)
class Loop:
    """How often something may be seen before it is a loop. 0: as often as it likes."""

    same_diff: int = USUAL_SAME  # the workspace came back to the same change
    same_failure: int = USUAL_SAME  # the same command failed, in a row

    @classmethod
    def read(cls, fields: Fields) -> "Loop":
        return cls(
            same_diff=fields.integer("same_diff", low=0, high=1000, default=USUAL_SAME),
            same_failure=fields.integer("same_failure", low=0, high=1000, default=USUAL_SAME),
        )


@dataclass(frozen=True)
class Approvals:
    """What needs a person's word before it is done."""

    tools: tuple[str, ...] = ()  # by name; `*` is every one
    commands: tuple[str, ...] = ()  # shell patterns of whole command lines
    push: bool = False
    hosts: bool = False  # a host that the network's policy refuses is asked about
    spend_usd: float | None = None  # asked about whenever so much more was spent
    pause_after_sec: int = USUAL_PAUSE_AFTER_S  # a question open for longer has its machine saved to disk

    @classmethod
    def read(cls, fields: Fields) -> "Approvals":
        return cls(
            tools=tuple(fields.text_list("tools", max_chars=128, max_count=MAX_RULES)),
            commands=tuple(fields.text_list("commands", max_chars=1024, max_count=MAX_RULES)),
            push=fields.flag("push", default=False),
            hosts=fields.flag("hosts", default=False),
            spend_usd=fields.number("spend_usd", low=0.01, high=MAX_USD, default=None),
            pause_after_sec=fields.integer("pause_after_sec", low=1, high=MAX_TIMEOUT_S, default=USUAL_PAUSE_AFTER_S),
        )


@dataclass(frozen=True)
class Checkpointing:
    """How often a task's workspace is kept while its agent works, beside each commit. 0: never; None: as usual."""

    steps: int | None = None
    minutes: int | None = None

    @classmethod
    def read(cls, fields: Fields) -> "Checkpointing":
        return cls(
            steps=fields.integer("steps", low=0, high=MAX_COUNT, default=None),
            minutes=fields.integer("minutes", low=0, high=7 * 24 * 60, default=None),
        )


@dataclass(frozen=True)
class Webhook:
    """Who is told of the end. The secret signs what is sent, and is never shown."""

    url: str
    secret: str = field(default="", repr=False)

    @classmethod
    def read_from(cls, fields: Fields) -> "Webhook | None":
        if not fields.has("webhook"):
            fields.raw("webhook", None)  # it may be null
            return None
        within = fields.inner("webhook")
        asked = cls(
            url=within.text("url", max_chars=MAX_URL_CHARS, pattern=URL),
            secret=within.text("secret", max_chars=256, default=""),
        )
        within.end()
        return asked


@dataclass(frozen=True)
class CreateTask:
    """A request for a task. `repr` shows nothing that may be a secret."""

    prompt: str = field(repr=False)
    agent: str
    model: str | None = None
    repo: str | None = field(default=None, repr=False)  # as it was asked for: it may have a password in it
    ref: str | None = None
    depth: int = 0
    branch: str | None = None
    push: bool = False
    image: str | None = None
    vcpus: int | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    network: Network | None = None
    env: dict[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = ()
    caps: Caps = field(default_factory=Caps)
    loop: Loop = field(default_factory=Loop)
    approvals: Approvals = field(default_factory=Approvals)
    keep_minutes: int = 0
    webhook: Webhook | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    retry_of: str | None = None
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    retries: int | None = None  # machines that may be lost, and the task goes on in another one
    workspace: str | None = None  # the name of what it works in, and what is saved at its end

    @classmethod
    def parse(cls, body: bytes, limits: ShapeLimits) -> "CreateTask":
        fields = Fields.parse(body)
        try:
            request = cls.read(fields, limits)
            fields.end()
        except BadField as error:  # of which the messages go to logs and screens that are not the caller's alone
            raise (error.unshown() if error.field.partition(".")[0] in SECRET_FIELDS else error) from None
        return request.checked()

    @classmethod
    def read(cls, fields: Fields, limits: ShapeLimits) -> "CreateTask":
        return cls(
            prompt=fields.text("prompt", max_chars=MAX_PROMPT_CHARS, pattern=NOT_BLANK),
            agent=fields.text("agent", max_chars=16, choices=AGENTS),
            model=fields.text("model", max_chars=128, pattern=r"[!-~]{1,128}", default=None),
            repo=fields.text("repo", max_chars=MAX_URL_CHARS, pattern=URL, default=None),
            ref=fields.text("ref", max_chars=200, pattern=REF, default=None),
            depth=fields.integer("depth", low=0, high=MAX_DEPTH, default=0),
            branch=fields.text("branch", max_chars=200, pattern=REF, default=None),
            push=fields.flag("push", default=False),
            image=fields.text("image", max_chars=64, default=None),
            vcpus=fields.integer("vcpus", low=1, high=limits.vcpus, default=None),
            memory_mb=fields.integer("memory_mb", low=128, high=limits.memory_mb, step=64, default=None),
            disk_mb=fields.integer("disk_mb", low=128, high=limits.disk_mb, step=64, default=None),
            network=Network.read_from(fields),
            env=fields.texts("env", max_chars=MAX_ENV_CHARS, max_count=MAX_ENV, names=ENV_NAME.pattern),
            secrets=tuple(fields.text_list("secrets", max_chars=64, max_count=MAX_RULES, pattern=SECRET_NAME)),
            caps=_inner(fields, "caps", Caps.read),
            loop=_inner(fields, "loop", Loop.read),
            approvals=_inner(fields, "approvals", Approvals.read),
            keep_minutes=fields.integer("keep_minutes", low=0, high=MAX_KEEP_MINUTES, default=0),
            webhook=Webhook.read_from(fields),
            metadata=fields.texts("metadata", max_chars=MAX_METADATA_CHARS, max_count=MAX_METADATA),
            retry_of=fields.text("retry_of", max_chars=19, pattern=TASK.pattern, default=None),
            checkpoint=_inner(fields, "checkpoint", Checkpointing.read),
            retries=fields.integer("retries", low=0, high=MAX_RETRIES, default=None),
            workspace=fields.text("workspace", max_chars=MAX_NAME_CHARS, pattern=NAME, default=None),
        )

    def checked(self) -> "CreateTask":
        """Itself, if its fields make sense together."""
        if self.agent not in ASKABLE and (self.approvals.tools or self.approvals.commands):
            name = "tools" if self.approvals.tools else "commands"
            problem = f"is only possible with an agent that asks ({', '.join(ASKABLE)}): {self.agent} does not"
            raise BadField(f"approvals.{name}", list(getattr(self.approvals, name)), problem)
        for name, value in (("ref", self.ref), ("push", self.push or None), ("depth", self.depth or None)):
            if value is not None and self.repo is None:
                raise BadField(name, value, "needs a repo")
        if self.repo is not None and self.workspace is not None:
            raise BadField("workspace", self.workspace, "cannot be had together with a repo: both are what it works in")
        return self

    def sandbox(self, network: Network | None, image: str | None) -> CreateSandbox:
        """The sandbox that the task works in. What its agent is told beside that is for the agent alone."""
        return CreateSandbox(
            image=image,
            vcpus=self.vcpus,
            memory_mb=self.memory_mb,
            disk_mb=self.disk_mb,
            rules=RulesAsked(timeout_sec=MAX_TIMEOUT_S, on_timeout="pause"),
            env={},
            metadata={},
            network=network,
            workspace=self.workspace,
        )


@dataclass(frozen=True)
class Usage:
    """What a task has used so far."""

    steps: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    usd: float | None = None  # None: nobody says what it costs
    usd_is_estimate: bool = False  # by the operator's prices, for the agent did not say
    output_bytes: int = 0
    wall_ms: int = 0  # without pauses

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True)
class Waiting:
    """A question that is open."""

    id: str
    kind: str  # question, tool, command, push, spend, host
    text: str
    tool: str | None
    arguments: Any
    since_ms: int


@dataclass(frozen=True)
class Task:
    """A task as the ledger has it. Its secrets are not part of it, nor is anything of them."""

    id: str
    state: TaskState
    owner: str
    agent: str
    model: str | None
    prompt: str = field(repr=False)  # or as much of it as is shown
    repo: str | None  # without what came before its host
    ref: str | None
    depth: int
    branch: str | None
    push: bool
    image: str | None
    vcpus: int | None
    memory_mb: int | None
    disk_mb: int | None
    network: Network | None  # as it was asked for
    secrets: tuple[str, ...]
    caps: Caps
    loop: Loop
    approvals: Approvals
    keep_minutes: int
    webhook: str | None
    metadata: dict[str, str]
    retry_of: str | None
    created_ms: int
    phase: str = "claim"  # claim, clone, restore, run, finish, done: what its host is about
    sandbox: str | None = None
    session: str | None = None  # of the agent
    waiting: tuple[Waiting, ...] = ()
    usage: Usage = field(default_factory=Usage)
    started_ms: int | None = None
    ended_ms: int | None = None
    reason: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    prompt_chars: int | None = None  # of the whole prompt; None: it is all there
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    retries: int = 0
    workspace: str | None = None
    continued: int = 0  # machines that it has lost and went on without

    def view(self) -> dict[str, Any]:
        """The reply's JSON."""
        shown = {name: value for name, value in asdict(self).items() if name not in ("network", "waiting")}
        return {
            **shown,
            "prompt": self.prompt[:SHOWN_PROMPT_CHARS],
            "prompt_chars": len(self.prompt) if self.prompt_chars is None else self.prompt_chars,
            "network": None if self.network is None else self.network.view(),
            "waiting": [asdict(each) for each in self.waiting],
        }


@dataclass(frozen=True)
class Input:
    """What a person says to a task: the answer to a question, or an instruction."""

    kind: str
    id: str | None
    text: str

    @classmethod
    def read(cls, fields: Fields) -> "Input":
        return cls(
            kind=fields.text("kind", max_chars=16, choices=COMMAND_KINDS),
            id=fields.text("id", max_chars=16, pattern=QUESTION_ID, default=None),
            text=fields.text("text", max_chars=MAX_TEXT_CHARS, default=""),
        )

    @classmethod
    def parse(cls, body: bytes) -> "Input":
        fields = Fields.parse(body)
        said = cls.read(fields)
        fields.end()
        if said.kind in ("answer", "instruct") and not said.text.strip():
            raise BadField("text", said.text, f"is required to {said.kind}")
        return said


def _inner(fields: Fields, name: str, read: Any) -> Any:
    within = fields.inner(name)
    value = read(within)
    within.end()
    return value
