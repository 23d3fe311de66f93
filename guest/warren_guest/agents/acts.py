"""Acts: what an adapter wants done because of something that the agent said. Done by `run`, in order."""

from dataclasses import dataclass, field

from warren_guest.agents.usage import Usage
from warren_guest.agents.values import Object

COMMAND, EDIT, READ, OTHER = "command", "edit", "read", "other"


@dataclass(frozen=True, slots=True)
class Tell:
    """An event that needs nothing else. Long texts are cut by who tells it."""

    kind: str
    fields: dict[str, object]


def thought(words: str) -> Tell:
    return Tell("agent.thought", {"text": words})


def message(words: str) -> Tell:
    return Tell("agent.message", {"text": words})


def note(words: str) -> Tell:
    return Tell("agent.log", {"stream": "stdout", "text": words})


@dataclass(frozen=True, slots=True)
class ToolStart:
    """`command` is the command line of a tool that runs one."""

    call: str
    tool: str
    kind: str
    arguments: Object
    command: str | None = None


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """The end of a call. Without a start before it, `tool` and `kind` are all that is known."""

    call: str
    output: str
    is_error: bool
    exit_code: int | None = None
    tool: str = ""
    kind: str = OTHER


@dataclass(frozen=True, slots=True)
class Ask:
    """A person is asked, and the agent waits. `key` is how the agent knows the question."""

    key: str
    kind: str
    text: str
    tool: str | None = None
    arguments: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The agent does not wait for an answer any more."""

    key: str


@dataclass(frozen=True, slots=True)
class Send:
    """Bytes for the agent's standard input."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CloseInput:
    """There is nothing more to say to the agent: it is to end by itself, soon."""


@dataclass(frozen=True, slots=True)
class Signal:
    number: int


@dataclass(frozen=True, slots=True)
class SessionIs:
    session: str
    model: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Used:
    """Totals of the session, as the CLI tells them."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Using:
    """What was used since the last `Used`, all of it."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Finished:
    """The agent's own word about its work. The last one counts."""

    is_success: bool
    result: str | None = None
    error: str | None = None


Act = Tell | ToolStart | ToolEnd | Ask | Withdraw | Send | CloseInput | Signal | SessionIs | Used | Using | Finished
