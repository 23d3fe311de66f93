"""What answers each operation of the table (`gateway/operations`): a handler here, or the host of the sandbox."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from contract.keys import Scope
from contract.tickets import Access
from gateway.handlers import documents, keys, observe, ports, sandboxes
from gateway.operations import OPERATIONS as TABLE
from gateway.proxy import ANSWER_S

Handler = Callable[[Request], Awaitable[Response]]

ONE = "/v1/sandboxes/{sandbox_id}"
COMMAND_S = 7 * 24 * 3600.0  # a command answers when it has ended


@dataclass(frozen=True)
class Operation:
    """What a gateway answers itself. `scope` None: no key is needed."""

    name: str
    method: str
    path: str
    scope: Scope | None
    handler: Handler


@dataclass(frozen=True)
class Passed:
    """What is passed to the host of a sandbox, under the same path. Method `WS`: a WebSocket."""

    name: str
    method: str
    rest: str  # of the path, behind the id; `{port}` is a number
    access: Access
    answer_s: float = ANSWER_S

    @property
    def path(self) -> str:
        return ONE + self.rest


_SAID = {each.name: each for each in TABLE}


def _answered(name: str, handler: Handler) -> Operation:
    said = _SAID[name]
    return Operation(name, said.method, said.path, said.scope, handler)


def _passed(name: str, access: Access, answer_s: float = ANSWER_S) -> Passed:
    said = _SAID[name]
    return Passed(name, said.method, said.path.removeprefix(ONE), access, answer_s)


OPERATIONS: Sequence[Operation] = (
    _answered("openapi", documents.openapi),
    _answered("docs", documents.docs),
    _answered("healthz", observe.healthz),
    _answered("readyz", observe.readyz),
    _answered("metrics", observe.metrics),
    _answered("create_sandbox", sandboxes.create),
    _answered("list_sandboxes", sandboxes.listed),
    _answered("destroy_sandbox", sandboxes.destroy),
    _answered("attach", sandboxes.attach),
    _answered("link_port", ports.link),
    _answered("get_usage", observe.usage),
    _answered("list_hosts", observe.hosts),
    _answered("create_key", keys.create),
    _answered("list_keys", keys.listed),
    _answered("get_key", keys.get),
    _answered("revoke_key", keys.revoke),
    _answered("rotate_key", keys.rotate),
)

PASSED: Sequence[Passed] = (
    _passed("get_sandbox", Access.READ),
    _passed("get_health", Access.READ),
    _passed("get_logs", Access.READ),
    _passed("get_events", Access.READ),
    _passed("read_file", Access.READ),
    _passed("write_file", Access.WRITE),
    _passed("run_command", Access.WRITE, COMMAND_S),
    _passed("pause_sandbox", Access.WRITE),
    _passed("resume_sandbox", Access.WRITE),
    _passed("set_timeout", Access.WRITE),
    _passed("set_port", Access.WRITE),
    _passed("get_network", Access.READ),
    _passed("set_network", Access.WRITE),
    _passed("get_egress", Access.READ),
    _passed("terminal", Access.WRITE),
)

PORT = re.compile(r"/ports/[0-9]{1,5}")
PREFIX = "/v1/sandboxes/"
ID_CHARS = 19
_BY_REST = {(each.method, each.rest): each for each in PASSED}


def passed_of(method: str, path: str) -> tuple[str, Passed | None]:
    """The id in a path under `PREFIX`, unchecked, and what is passed to its host for it, if anything is."""
    begin = len(PREFIX)
    sandbox, rest = path[begin : begin + ID_CHARS], path[begin + ID_CHARS :]
    found = _BY_REST.get((method, rest))
    if found is None and PORT.fullmatch(rest):
        found = _BY_REST.get((method, "/ports/{port}"))
    return sandbox, found


_ALL: Sequence[Operation | Passed] = (*OPERATIONS, *PASSED)
_METHODS = [(re.compile(re.sub(r"{\w+}", "[^/]+", each.path)), each.method) for each in _ALL if each.method != "WS"]


def methods_of(path: str) -> set[str]:
    """The methods that there are under this path."""
    return {method for pattern, method in _METHODS if pattern.fullmatch(path)}
