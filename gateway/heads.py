"""What the head of a request says of itself. Most clients ask again with the same head: each is read once."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from contract.keys import Scope
from gateway.auth import secret_of
from gateway.client_body import has_none
from gateway.errors import BadFraming
from gateway.headers import Asked, asked_headers
from gateway.routes import Passed, passed_of

REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_HEADS = 1024
MAX_HEAD_BYTES = 4096  # of one that is remembered

Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Branch = Callable[[Any], Asgi | None]


@dataclass(slots=True)
class Way:
    """How a request goes to the host of its sandbox or task."""

    passed: Passed
    scope: Scope  # that its key must have
    target: str  # path and query
    asked: Asked | None  # its headers, unless they can be read in two ways
    is_short: bool  # a GET without a body, with nothing wrong about it
    begun: tuple[object, str, bytes] = (None, "", b"")  # how it last began, to which upstream and with which ticket


@dataclass(slots=True)
class Head:
    """All of it follows from the bytes of the head alone. Whoever asks is still to be proved."""

    address: str  # of the client
    request_id: str | None = None  # the client's own, if it makes sense
    branch: Asgi | None = None  # what takes it before all else
    secret: str | None = None
    sandbox: str | None = None  # the id in its path, unchecked; or that of a task
    operation: str = "none"
    way: Way | None = None  # if it is passed to the host of a sandbox or a task


class Heads:
    """Reads heads, and remembers those that no branch takes."""

    def __init__(self, branches: Sequence[Branch] = ()) -> None:
        self._branches = branches
        self._known: dict[tuple[Any, ...], Head] = {}

    def get(self, scope: Any) -> Head:
        client = scope["client"]
        address: str = client[0] if client else ""
        given = scope["headers"]
        # A WebSocket has no method. The client's port is none of our business: a head comes over many connections.
        key = (scope.get("method"), scope["raw_path"], scope["query_string"], scope["scheme"], address, *given)
        head = self._known.get(key)
        if head is None:
            head = self._read(scope, address)
            if head.branch is None and _size(scope) <= MAX_HEAD_BYTES:
                if len(self._known) >= MAX_HEADS:
                    self._known.clear()
                self._known[key] = head
        return head

    def _read(self, scope: Any, address: str) -> Head:
        is_socket = scope["type"] == "websocket"
        head = Head(address, _request_id(scope), secret=secret_of(scope["headers"], is_socket))
        head.branch = next((app for branch in self._branches if (app := branch(scope)) is not None), None)
        path: str = scope["path"]
        if head.branch is None:
            head.sandbox, passed = passed_of("WS" if is_socket else scope["method"], path)
            if passed is not None and head.sandbox is not None:
                head.operation = passed.name
                head.way = _way(scope, head.sandbox, passed)
        return head


def _size(scope: Any) -> int:
    headers = sum(len(name) + len(value) for name, value in scope["headers"])
    return headers + len(scope["raw_path"]) + len(scope["query_string"])


def _request_id(scope: Any) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            asked: str = value.decode("latin-1")
            return asked if REQUEST_ID.fullmatch(asked) else None
    return None


def _way(scope: Any, sandbox: str, passed: Passed) -> Way:
    asked = _asked(scope, passed.accept)
    is_plain = scope.get("method") == "GET" and passed.family.form.fullmatch(sandbox) is not None
    is_short = is_plain and asked is not None and has_none(scope, asked.length, asked.is_coded)
    return Way(passed, passed.scope, _target(scope, passed), asked, is_short)


def _asked(scope: Any, accept: bytes | None) -> Asked | None:
    given = scope["headers"]
    if accept is not None:
        given = [*(pair for pair in given if pair[0] != b"accept"), (b"accept", accept)]
    try:
        return asked_headers(scope, given)
    except BadFraming:
        return None  # who passes it on reads it again, and says so


def _target(scope: Any, passed: Passed) -> str:
    """Path and query as they go to the host."""
    query: bytes = scope["query_string"]
    path = passed.target(scope["path"])
    return f"{path}?{query.decode('latin-1')}" if query else path
