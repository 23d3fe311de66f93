"""What the gateway tells of tasks, as plain values. As in `models`, fields that are not known are skipped."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from warren.errors import ProtocolError, WarrenError
from warren.models import Event, Network, read, read_network

COMPLETED, FAILED, STOPPED = "completed", "failed", "stopped"
FINAL = (COMPLETED, FAILED, STOPPED)  # states that a task does not leave
FINAL_KINDS = tuple(f"task.{state}" for state in FINAL)


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
        """Read and written together, what a cache had included."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True)
class Question:
    """Something that waits for a person: `approve`, `reject` or `answer` it by its id."""

    id: str
    kind: str  # "question", "tool", "command", "push", "spend" or "host"
    text: str = ""
    tool: str | None = None
    arguments: Any = None
    since_ms: int = 0


@dataclass(frozen=True)
class TaskInfo:
    """A task as it was when it was asked for. Times are Unix milliseconds."""

    id: str
    state: str
    agent: str
    created_ms: int
    owner: str = ""
    model: str | None = None
    prompt: str = ""  # its beginning
    prompt_chars: int = 0  # of all of it
    repo: str | None = None
    ref: str | None = None
    depth: int = 0
    branch: str | None = None
    push: bool = False
    image: str | None = None
    vcpus: int | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    network: Network | None = None
    secrets: tuple[str, ...] = ()  # their names
    caps: Mapping[str, Any] = field(default_factory=dict)
    loop: Mapping[str, Any] = field(default_factory=dict)
    approvals: Mapping[str, Any] = field(default_factory=dict)
    keep_minutes: int = 0
    webhook: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_of: str | None = None
    checkpoint: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 0
    workspace: str | None = None  # what it works in, in place of a repository, and what its files are saved as
    continued: int = 0  # machines that it has lost and went on without
    phase: str = ""  # what its host is about: "claim", "clone", "restore", "run", "finish" or "done"
    sandbox: str | None = None
    session: str | None = None  # of the agent
    waiting: tuple[Question, ...] = ()
    usage: Usage = field(default_factory=Usage)
    started_ms: int | None = None
    ended_ms: int | None = None
    reason: Mapping[str, Any] | None = None  # it did not complete: code, message, and figures
    result: Mapping[str, Any] | None = None  # summary, commits, base, head, diff, archive, pushed

    @property
    def is_over(self) -> bool:
        return self.state in FINAL

    @property
    def ok(self) -> bool:
        return self.state == COMPLETED

    def check(self) -> "TaskInfo":
        """Itself, or `TaskFailed`."""
        if not self.ok:
            raise TaskFailed(self)
        return self


class TaskFailed(WarrenError):
    """A task that was to complete did not."""

    code = "task_failed"

    def __init__(self, info: TaskInfo) -> None:
        why = (info.reason or {}).get("message")
        super().__init__(f"{info.id} is {info.state}" + (f": {str(why)[:200]}" if why else ""))
        self.info = info


@dataclass(frozen=True)
class TaskEvent(Event):
    """Something that happened in a task. `by` is who told it: what a guest tells may be anything."""

    @property
    def is_final(self) -> bool:
        """The last one, which only the host can tell."""
        return self.by == "host" and self.kind in FINAL_KINDS


@dataclass(frozen=True)
class Step:
    """One tool that the agent used, or something that it said."""

    number: int
    thought: str | None = None
    tool: str | None = None
    arguments: Any = None
    output: str | None = None  # its beginning
    output_bytes: int = 0
    output_artifact: str | None = None  # that has all of it
    is_error: bool = False
    started_ms: int | None = None
    ended_ms: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    usd: float | None = None


@dataclass(frozen=True)
class Artifact:
    """A file of a task, to download by its name."""

    name: str
    bytes: int = 0
    sha256: str | None = None
    kind: str = ""
    at_ms: int = 0


@dataclass(frozen=True)
class Diff:
    """The changes to the workspace, byte for byte: what `git apply` takes, unless it was cut."""

    data: bytes
    is_truncated: bool = False

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class View:
    """What the browser of a sandbox shows."""

    title: str = ""
    url: str = ""
    text: str = ""
    status: int | None = None  # of the page's own reply
    console: tuple[Any, ...] = ()  # what went wrong in it
    screenshot: bytes = field(default=b"", repr=False)  # a PNG
    value: Any = None  # of what was evaluated


def read_task(value: Any) -> TaskInfo:
    info = read(TaskInfo, value)
    return replace(
        info,
        network=None if info.network is None else read_network(info.network),
        waiting=tuple(read(Question, each) for each in _several(info.waiting)),
        usage=read(Usage, info.usage) if isinstance(info.usage, Mapping) else info.usage,
    )


def read_view(value: Any) -> View:
    view = read(View, value)
    try:
        return replace(view, screenshot=base64.b64decode(view.screenshot or b"", validate=True))
    except (binascii.Error, TypeError, ValueError):
        raise ProtocolError("the screenshot is not in base64") from None


def _several(value: Any) -> Any:
    """Questions as a list, whether there is none, one or several."""
    return () if value is None else (value,) if isinstance(value, Mapping) else value
