"""All that a gateway can be asked, in one table: who may, what answers, and what is passed to a host."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from contract.keys import Scope
from contract.tickets import Access
from gateway.handlers import keys, observe, ports, sandboxes
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


OPERATIONS: Sequence[Operation] = (
    Operation("healthz", "GET", "/healthz", None, observe.healthz),
    Operation("readyz", "GET", "/readyz", None, observe.readyz),
    Operation("metrics", "GET", "/metrics", None, observe.metrics),
    Operation("create_sandbox", "POST", "/v1/sandboxes", Scope.SANDBOXES, sandboxes.create),
    Operation("list_sandboxes", "GET", "/v1/sandboxes", Scope.SANDBOXES, sandboxes.listed),
    Operation("destroy_sandbox", "DELETE", ONE, Scope.SANDBOXES, sandboxes.destroy),
    Operation("attach", "POST", f"{ONE}/attach", Scope.SANDBOXES, sandboxes.attach),
    Operation("link_port", "POST", f"{ONE}/ports/{{port}}/link", Scope.SANDBOXES, ports.link),
    Operation("get_usage", "GET", "/v1/usage", Scope.SANDBOXES, observe.usage),
    Operation("list_hosts", "GET", "/v1/hosts", Scope.ADMIN, observe.hosts),
    Operation("create_key", "POST", "/v1/keys", Scope.ADMIN, keys.create),
    Operation("list_keys", "GET", "/v1/keys", Scope.ADMIN, keys.listed),
    Operation("get_key", "GET", "/v1/keys/{key_id}", Scope.ADMIN, keys.get),
    Operation("revoke_key", "DELETE", "/v1/keys/{key_id}", Scope.ADMIN, keys.revoke),
    Operation("rotate_key", "POST", "/v1/keys/{key_id}/rotate", Scope.ADMIN, keys.rotate),
)

PASSED: Sequence[Passed] = (
    Passed("get_sandbox", "GET", "", Access.READ),
    Passed("get_health", "GET", "/health", Access.READ),
    Passed("get_logs", "GET", "/logs", Access.READ),
    Passed("get_events", "GET", "/events", Access.READ),
    Passed("read_file", "GET", "/files", Access.READ),
    Passed("write_file", "PUT", "/files", Access.WRITE),
    Passed("run_command", "POST", "/exec", Access.WRITE, COMMAND_S),
    Passed("pause_sandbox", "POST", "/pause", Access.WRITE),
    Passed("resume_sandbox", "POST", "/resume", Access.WRITE),
    Passed("set_timeout", "POST", "/timeout", Access.WRITE),
    Passed("set_port", "PUT", "/ports/{port}", Access.WRITE),
    Passed("terminal", "WS", "/terminal", Access.WRITE),
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


def methods_of(rest: str) -> set[str]:
    """The methods of what is passed under this path behind an id."""
    plain = "/ports/{port}" if PORT.fullmatch(rest) else rest
    return {each.method for each in PASSED if each.rest == plain and each.method != "WS"}
