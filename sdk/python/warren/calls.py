"""Every request that this package makes, and how its reply is read. No I/O: the two clients send what stands here."""

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote

from warren.errors import ProtocolError, WarrenError, error_of
from warren.models import (
    Connection,
    Event,
    Info,
    Key,
    Network,
    NewKey,
    Page,
    Reach,
    Ticket,
    Within,
    read,
    read_info,
    read_key,
    read_network,
)

T = TypeVar("T")
SANDBOXES = "/v1/sandboxes"
EVENT_STREAM = "text/event-stream"
MAX_PAGE = 1000
MAX_NUMBER = 10**15  # of a row: behind it there is none
GRACE_S = 3600  # of a key that was rotated, as everywhere
SAVE_S = 3600.0  # a workspace is carried to the store, or from there
MAX_TEXT = 200  # of a reply that is not ours, in a message
SANDBOX = re.compile(r"sb-[a-z2-7]{16}")

Command = str | Sequence[str]
Json = dict[str, Any]
NetworkAsked = Network | Mapping[str, Any]  # the latter as the gateway's API has it


class CreateOptions(TypedDict, total=False):
    """What a sandbox can be asked to be; what is not said is as the image, your key or the host have it."""

    vcpus: int
    memory_mb: int
    disk_mb: int
    timeout_sec: int
    on_timeout: str  # "destroy" or "pause"
    idle_sec: int
    hibernate_sec: int
    hibernate_kind: str  # "machine" or "files"
    paused_sec: int
    auto_resume: bool
    env: Mapping[str, str]
    metadata: Mapping[str, str]
    public_ports: Sequence[int]
    network: "NetworkAsked"  # what it may reach
    workspace: str  # a name: what was saved under it is in /workspace, and is saved under it again
    template: str  # what /workspace begins with, if nothing was saved yet


class RunOptions(TypedDict, total=False):
    """How a command is run."""

    cwd: str
    env: Mapping[str, str]
    user: str
    stdin: str
    timeout_sec: int


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise ProtocolError(f"the reply is not JSON: {self.body[:MAX_TEXT]!r}") from None


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and what its reply means."""

    method: str
    path: str
    read: Callable[[Reply], T]
    query: tuple[tuple[str, str], ...] = ()
    body: Any = None  # JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = False  # a second time does no harm
    answer_s: float = 0.0  # its answer may take so long, if that is longer than what others may take

    def content(self) -> bytes | None:
        return None if self.body is None else json.dumps(self.body, ensure_ascii=False).encode()


def refusal(reply: Reply) -> WarrenError:
    """The error that a reply of 400 and above means, also one that is not from a gateway."""
    request_id = reply.headers.get("x-request-id")
    try:
        error = json.loads(reply.body)["error"]
        code, message = str(error.pop("code")), str(error.pop("message"))
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message, error = f"http_{reply.status}", repr(reply.body[:MAX_TEXT]), {}
    after = reply.headers.get("retry-after", "")
    if "retry_after_s" not in error and re.fullmatch(r"[0-9]{1,6}", after):
        error["retry_after_s"] = int(after)
    return error_of(reply.status, code, message, error, request_id)


def create(image: str | None, options: CreateOptions, idempotency_key: str | None = None) -> Call[Info]:
    """It has a key of its own, so that a second try gives the same sandbox."""
    body = given({"image": image, **options, "network": network_of(options.get("network"))})
    headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    answer_s = SAVE_S if "workspace" in body else 0.0
    return Call("POST", SANDBOXES, _info, body=body, headers=headers, is_repeatable=True, answer_s=answer_s)


def get(sandbox: str) -> Call[Info]:
    return Call("GET", one(sandbox), _info, is_repeatable=True)


def listed(
    states: str | Sequence[str] | None,
    metadata: Mapping[str, str] | None,
    image: str | None,
    owner: str | None,
    before: str | None,
) -> Call[Page[Info]]:
    state = states if isinstance(states, str | None) else ",".join(states)
    asked = {"state": state, "image": image, "owner": owner, "before": before, "limit": MAX_PAGE}
    asked |= {f"metadata.{name}": value for name, value in (metadata or {}).items()}
    return Call("GET", SANDBOXES, _page, query=query_of(asked), is_repeatable=True)


def kill(sandbox: str, *, discard: bool = False, is_saved: bool = False) -> Call[Info]:
    query = query_of({"discard": 1 if discard else None})
    answer_s = SAVE_S if is_saved and not discard else 0.0
    return Call("DELETE", one(sandbox), _info, query=query, is_repeatable=True, answer_s=answer_s)


def pause(sandbox: str) -> Call[Info]:
    return Call("POST", f"{one(sandbox)}/pause", _info)


def resume(sandbox: str) -> Call[Info]:
    return Call("POST", f"{one(sandbox)}/resume", _info)


def hibernate(sandbox: str, kind: str = "machine") -> Call[Info]:
    # What is usual goes without saying: an older host knows no other kind.
    return Call("POST", f"{one(sandbox)}/hibernate", _info, body=None if kind == "machine" else {"kind": kind})


def note_damaged(damaged: list[str], headers: Mapping[str, str]) -> None:
    """The parts of a disk that are zeros in its image, as the reply's headers tell them."""
    damaged += [name for name in headers.get("x-warren-damaged", "").split(",") if name]


def drive(sandbox: str) -> Call[None]:
    return Call("GET", f"{one(sandbox)}/drive", nothing, headers={"Accept": "*/*"}, is_repeatable=True)


def extend(sandbox: str, timeout_sec: int) -> Call[Info]:
    return Call("POST", f"{one(sandbox)}/timeout", _info, body={"timeout_sec": timeout_sec})


def logs(sandbox: str, lines: int) -> Call[str]:
    return Call("GET", f"{one(sandbox)}/logs", text_of, query=query_of({"lines": lines}), is_repeatable=True)


def execute(sandbox: str, cmd: Command, options: RunOptions) -> Call[None]:
    """Never sent twice: nobody but the caller knows whether it may run again."""
    body = given({"cmd": cmd if isinstance(cmd, str) else list(cmd), **options})
    query = query_of({"encoding": "base64"})
    return Call("POST", f"{one(sandbox)}/exec", nothing, query=query, body=body, headers={"Accept": EVENT_STREAM})


def events(sandbox: str, after: int) -> Call[list[Event]]:
    query = query_of({"after": after, "limit": MAX_PAGE})
    return Call("GET", f"{one(sandbox)}/events", _events, query=query, is_repeatable=True)


def event_stream(sandbox: str, after: int) -> Call[None]:
    headers = {"Accept": EVENT_STREAM, "Last-Event-ID": str(after)}
    return Call("GET", f"{one(sandbox)}/events", nothing, headers=headers, is_repeatable=True)


def network(sandbox: str) -> Call[Reach]:
    return Call("GET", f"{one(sandbox)}/network", _reach, is_repeatable=True)


def set_network(sandbox: str, asked: NetworkAsked) -> Call[Info]:
    return Call("PUT", f"{one(sandbox)}/network", _info, body=network_of(asked), is_repeatable=True)


def egress(sandbox: str, after: int, verdict: str | None = None) -> Call[list[Connection]]:
    query = query_of({"after": after, "limit": MAX_PAGE, "verdict": verdict})
    return Call("GET", f"{one(sandbox)}/egress", _connections("rows"), query=query, is_repeatable=True)


def egress_stream(sandbox: str, after: int, verdict: str | None = None) -> Call[None]:
    headers = {"Accept": EVENT_STREAM, "Last-Event-ID": str(after)}
    query = query_of({"verdict": verdict})
    return Call("GET", f"{one(sandbox)}/egress", nothing, query=query, headers=headers, is_repeatable=True)


def open_egress(sandbox: str) -> Call[list[Connection]]:
    """Those that are open now, without those that are over."""
    query = query_of({"after": MAX_NUMBER, "limit": 1})
    return Call("GET", f"{one(sandbox)}/egress", _connections("open"), query=query, is_repeatable=True)


def download(sandbox: str, path: str, user: str | None) -> Call[None]:
    query = query_of({"path": path, "user": user})
    return Call("GET", f"{one(sandbox)}/files", nothing, query=query, is_repeatable=True)


def upload(sandbox: str, path: str, user: str | None, mode: int | None, size: int | None) -> Call[int]:
    """How many bytes arrived. It may be repeated if its source can be read again: who sends it knows."""
    query = query_of({"path": path, "user": user, "mode": None if mode is None else f"{mode:04o}"})
    headers = {"Content-Type": "application/octet-stream"}
    if size is not None:
        headers["Content-Length"] = str(size)
    return Call("PUT", f"{one(sandbox)}/files", _bytes, query=query, headers=headers)


def attach(sandbox: str) -> Call[Ticket]:
    return Call("POST", f"{one(sandbox)}/attach", lambda reply: read(Ticket, reply.json()))


def terminal_query(
    pid: int | None, cols: int, rows: int, user: str | None, cmd: str | None
) -> tuple[tuple[str, str], ...]:
    if pid is not None:
        return query_of({"pid": pid, "after": 0})
    return query_of({"cols": cols, "rows": rows, "user": user, "cmd": cmd})


def terminal_path(sandbox: str) -> str:
    return f"{one(sandbox)}/terminal"


def publish(sandbox: str, port: int, *, public: bool) -> Call[Info]:
    return Call("PUT", f"{one(sandbox)}/ports/{port}", _info, body={"public": public}, is_repeatable=True)


def link(sandbox: str, port: int, expires_sec: int | None) -> Call[str]:
    """A signed address, which lets whoever has it in. A second one does no harm."""
    body = given({"expires_sec": expires_sec})
    return Call("POST", f"{one(sandbox)}/ports/{port}/link", _url, body=body, is_repeatable=True)


def hosts() -> Call[list[Json]]:
    return Call("GET", "/v1/hosts", lambda reply: rows_of(reply, "hosts"), is_repeatable=True)


def usage(owner: str | None = None) -> Call[Json]:
    return Call("GET", "/v1/usage", object_of, query=query_of({"owner": owner}), is_repeatable=True)


def keys() -> Call[list[Key]]:
    return Call("GET", "/v1/keys", lambda reply: [read_key(row) for row in rows_of(reply, "keys")], is_repeatable=True)


def create_key(owner: str, fields: Json) -> Call[NewKey]:
    """Never sent twice: each time there would be one more key that nobody has."""
    return Call(
        "POST",
        "/v1/keys",
        _new_key,
        body=given({"owner": owner, **fields, "network": network_of(fields.get("network"))}),
    )


def revoke_key(key: str) -> Call[None]:
    return Call("DELETE", f"/v1/keys/{quote(key, safe='')}", nothing, is_repeatable=True)


def rotate_key(key: str, grace_sec: int) -> Call[NewKey]:
    return Call("POST", f"/v1/keys/{quote(key, safe='')}/rotate", _new_key, body={"grace_sec": grace_sec})


def without_pass(link: str) -> str:
    """The address that a link leads to, for those who need none."""
    return link.partition("?")[0]


def one(sandbox: str) -> str:
    return f"{SANDBOXES}/{quote(sandbox, safe='')}"


def given(fields: Mapping[str, Any]) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def network_of(asked: NetworkAsked | None) -> Json | None:
    if not isinstance(asked, Network):
        return None if asked is None else dict(asked)
    return given(asdict(asked))


def query_of(fields: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in fields.items() if value is not None)


def object_of(reply: Reply) -> Json:
    value = reply.json()
    if not isinstance(value, dict):
        raise ProtocolError(f"the reply is not a JSON object but {type(value).__name__}")
    return value


def rows_of(reply: Reply, name: str) -> list[Json]:
    rows = object_of(reply).get(name)
    if not isinstance(rows, list):
        raise ProtocolError(f"the reply has no list {name!r}")
    return rows


def _info(reply: Reply) -> Info:
    return read_info(reply.json())


def _page(reply: Reply) -> Page[Info]:
    rows = [read_info(row) for row in rows_of(reply, "sandboxes")]
    told = object_of(reply)
    return Page(rows, told.get("next"), tuple(str(host) for host in told.get("incomplete") or ()))


def _events(reply: Reply) -> list[Event]:
    return [read(Event, row) for row in rows_of(reply, "events")]


def _reach(reply: Reply) -> Reach:
    within = rows_of(reply, "within")
    levels = tuple(Within(str(each.get("level")), read_network(each.get("network"))) for each in within)
    return Reach(read_network(object_of(reply).get("network")), levels)


def _connections(name: str) -> Callable[[Reply], list[Connection]]:
    return lambda reply: [read(Connection, row) for row in rows_of(reply, name)]


def _bytes(reply: Reply) -> int:
    return int(object_of(reply).get("bytes", -1))


def _url(reply: Reply) -> str:
    url = object_of(reply).get("url")
    if not isinstance(url, str):
        raise ProtocolError("the reply has no address")
    return url


def _new_key(reply: Reply) -> NewKey:
    told = object_of(reply)
    return NewKey(read_key(told.get("key", told)), str(told.get("secret", "")))


def text_of(reply: Reply) -> str:
    return reply.body.decode("utf-8", "replace")


def nothing(reply: Reply) -> None:
    return None
