"""What requests ask for in their query. A gateway describes it and a host reads it, with the same functions."""

from dataclasses import dataclass
from urllib.parse import urlencode

from contract.fields import Fields
from contract.models import (
    HIBERNATE_KINDS,
    MACHINE,
    MAX_METADATA_CHARS,
    MAX_PATH_BYTES,
    MAX_TIMEOUT_S,
    OWNER,
    USER_NAME,
    file_path,
)
from contract.query import Query
from contract.states import State
from contract.task_states import TaskState
from contract.tasks import AGENTS
from contract.workspaces import MAX_NAME_CHARS, MAX_VERSION, NAME

MAX_PAGE = 1000
DEFAULT_PAGE = 100
MAX_LINES = 1000
DEFAULT_LINES = 200
MAX_LINK_S = 7 * 24 * 3600
DEFAULT_LINK_S = 24 * 3600
MAX_LABELS = 16  # of the metadata that a list is asked for
MAX_NUMBER = 10**15
# A path without a part '..'. What `file_path` says of a bad one is clearer; this is for those who make requests.
PATH = r"(?!(?:[^\u0000]*/)?\.\.(?![^/]))[^\u0000]+"
MODE = r"[0-7]{1,4}"
ALL_BUT_STOPPED = tuple(state for state in State if state is not State.STOPPED)
IDEMPOTENCY_KEY = r"[!-~]{1,255}"  # what can be seen in ASCII
EVERYBODY = "*"
CURSOR = r"[0-9]{1,15}\.sb-[a-z2-7]{16}"
TASK_CURSOR = r"[0-9]{1,15}\.tk-[a-z2-7]{16}"


@dataclass(frozen=True)
class ListAsked:
    """A page of sandboxes, newest first, behind the one that `before` names. `owner` None: the caller's own."""

    states: tuple[State, ...]
    image: str | None
    metadata: dict[str, str]
    before: tuple[int, str] | None
    limit: int
    owner: str | None = None

    @classmethod
    def read(cls, query: Query) -> "ListAsked":
        states = query.words("state", choices=tuple(State))
        before = query.text("before", max_chars=64, pattern=CURSOR, default=None)
        return cls(
            states=tuple(State(state) for state in states) or ALL_BUT_STOPPED,
            image=query.text("image", max_chars=64, default=None),
            metadata=query.labels("metadata", max_chars=MAX_METADATA_CHARS, max_count=MAX_LABELS),
            before=None if before is None else cursor(before),
            limit=query.integer("limit", low=1, high=MAX_PAGE, default=DEFAULT_PAGE),
            owner=whose(query),
        )

    def encode(self) -> str:
        """The same query again, for a host; whose sandboxes they are is for the ticket to say."""
        asked = {"state": ",".join(self.states), "limit": str(self.limit)}
        asked |= {} if self.image is None else {"image": self.image}
        asked |= {} if self.before is None else {"before": "{}.{}".format(*self.before)}
        return urlencode(asked | {f"metadata.{name}": value for name, value in self.metadata.items()})


@dataclass(frozen=True)
class TasksAsked:
    """A page of tasks, newest first, behind the one that `before` names. `owner` None: the caller's own."""

    states: tuple[TaskState, ...]  # none: all
    agent: str | None
    before: tuple[int, str] | None
    limit: int
    owner: str | None = None

    @classmethod
    def read(cls, query: Query) -> "TasksAsked":
        before = query.text("before", max_chars=64, pattern=TASK_CURSOR, default=None)
        return cls(
            states=tuple(TaskState(state) for state in query.words("state", choices=tuple(TaskState))),
            agent=query.text("agent", max_chars=16, choices=AGENTS, default=None),
            before=None if before is None else cursor(before),
            limit=query.integer("limit", low=1, high=MAX_PAGE, default=DEFAULT_PAGE),
            owner=whose(query),
        )

    def encode(self) -> str:
        """The same query again, for a host; whose tasks they are is for the ticket to say."""
        asked = {"limit": str(self.limit)}
        asked |= {"state": ",".join(self.states)} if self.states else {}
        asked |= {} if self.agent is None else {"agent": self.agent}
        asked |= {} if self.before is None else {"before": "{}.{}".format(*self.before)}
        return urlencode(asked)


@dataclass(frozen=True)
class EventsAsked:
    after: int
    limit: int

    @classmethod
    def read(cls, query: Query) -> "EventsAsked":
        return cls(
            after=query.integer("after", low=0, high=MAX_NUMBER, default=0),
            limit=query.integer("limit", low=1, high=MAX_PAGE, default=DEFAULT_PAGE),
        )


@dataclass(frozen=True)
class EgressAsked:
    """Connections of a sandbox, behind number `after`."""

    after: int
    limit: int
    verdict: str | None  # only these

    @classmethod
    def read(cls, query: Query) -> "EgressAsked":
        return cls(
            after=query.integer("after", low=0, high=MAX_NUMBER, default=0),
            limit=query.integer("limit", low=1, high=MAX_PAGE, default=DEFAULT_PAGE),
            verdict=query.text("verdict", max_chars=16, choices=("allowed", "refused"), default=None),
        )


@dataclass(frozen=True)
class FileAsked:
    path: str
    user: str | None
    mode: str | None = None

    @classmethod
    def read(cls, query: Query) -> "FileAsked":
        return cls(*_file(query))

    @classmethod
    def read_upload(cls, query: Query) -> "FileAsked":
        return cls(*_file(query), mode=query.text("mode", max_chars=4, pattern=MODE, default=None))


@dataclass(frozen=True)
class WorkspacesAsked:
    """A page of workspaces, by name, behind the one that `after` names."""

    after: str | None
    limit: int

    @classmethod
    def read(cls, query: Query) -> "WorkspacesAsked":
        return cls(
            after=query.text("after", max_chars=MAX_NAME_CHARS, pattern=NAME, default=None),
            limit=query.integer("limit", low=1, high=MAX_PAGE, default=DEFAULT_PAGE),
        )


@dataclass(frozen=True)
class VersionsAsked:
    """A page of versions, newest first, of those older than `before`."""

    before: int | None
    limit: int

    @classmethod
    def read(cls, query: Query) -> "VersionsAsked":
        return cls(
            before=query.integer("before", low=1, high=MAX_VERSION, default=None),
            limit=query.integer("limit", low=1, high=MAX_PAGE, default=DEFAULT_PAGE),
        )


@dataclass(frozen=True)
class DiffAsked:
    """What is different between two versions. `path`: in this file, as text."""

    before: int | None  # None: what `after` was made from
    after: int | None  # None: the newest
    path: str | None
    limit: int

    @classmethod
    def read(cls, query: Query) -> "DiffAsked":
        return cls(
            before=query.integer("from", low=1, high=MAX_VERSION, default=None),
            after=query.integer("to", low=1, high=MAX_VERSION, default=None),
            path=query.text("path", max_chars=MAX_PATH_BYTES, default=None),
            limit=query.integer("limit", low=1, high=MAX_PAGE, default=MAX_PAGE),
        )


def restored_version(fields: Fields) -> int:
    return fields.integer("version", low=1, high=MAX_VERSION)


def is_discarded(query: Query) -> bool:
    """Whether a sandbox ends also if its workspace cannot be saved."""
    return query.text("discard", max_chars=1, choices=("0", "1"), default="0") == "1"


def whose(query: Query) -> str | None:
    """The owner that an admin asks for: one, or `*` for all. None: the caller."""
    return query.text("owner", max_chars=64, pattern=rf"\*|{OWNER.pattern}", default=None)


def log_lines(query: Query) -> int:
    return query.integer("lines", low=1, high=MAX_LINES, default=DEFAULT_LINES)


def output_encoding(query: Query) -> str:
    return query.text("encoding", max_chars=16, choices=("text", "base64"), default="text")


def timeout_sec(fields: Fields) -> int:
    return fields.integer("timeout_sec", low=1, high=MAX_TIMEOUT_S)


def link_life_s(fields: Fields) -> int:
    """For how long a link to a preview is to be good, in seconds."""
    return fields.integer("expires_sec", low=1, high=MAX_LINK_S, default=DEFAULT_LINK_S)


def is_public(fields: Fields) -> bool:
    return fields.flag("public")


def hibernate_kind(fields: Fields) -> str:
    """What of a sandbox goes to the store."""
    return fields.text("kind", max_chars=16, choices=HIBERNATE_KINDS, default=MACHINE)


def nothing(_fields: Fields) -> None:
    """The body of a request that has no fields."""


def cursor(text: str) -> tuple[int, str]:
    created_ms, _, sandbox_id = text.partition(".")
    return int(created_ms), sandbox_id


def _file(query: Query) -> tuple[str, str | None]:
    path = file_path(query.text("path", max_chars=MAX_PATH_BYTES, pattern=PATH))
    return path, query.text("user", max_chars=32, pattern=USER_NAME.pattern, default=None)
