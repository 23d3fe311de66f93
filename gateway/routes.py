"""What answers each operation of the table (`gateway/operations`): a handler here, or the host that has the thing."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from contract.ids import SANDBOX, TASK, sandbox_id, task_id
from contract.keys import Scope
from contract.tickets import Access
from gateway.handlers import documents, jobs, keys, observe, ports, sandboxes, tasks, workspaces
from gateway.operations import OPERATIONS as TABLE
from gateway.operations.operation import STREAM
from gateway.operations.task_views import ARTIFACT
from gateway.proxy import ANSWER_S

Handler = Callable[[Request], Awaitable[Response]]

COMMAND_S = 7 * 24 * 3600.0  # a command answers when it has ended
STORE_S = 3600.0  # what goes to the object store and comes from there may be large, and the way to it slow
BROWSER_S = 600.0  # a browser is started first, and its page may load slowly
ID_CHARS = 19


@dataclass(frozen=True)
class Operation:
    """What a gateway answers itself. `scope` None: no key is needed."""

    name: str
    method: str
    path: str
    scope: Scope | None
    handler: Handler


@dataclass(frozen=True)
class Family:
    """Paths with the id of one kind of thing in them."""

    prefix: str  # before the id, for clients
    at_host: str  # the same, at the host
    form: re.Pattern[str]
    checked: Callable[[str], str]  # the id, if it has that form; else it cannot be found


@dataclass(frozen=True)
class Passed:
    """What is passed to the host of a sandbox or a task. Method `WS`: a WebSocket."""

    name: str
    method: str
    path: str
    scope: Scope  # that the key must have
    access: Access
    family: Family
    answer_s: float = ANSWER_S
    as_other: str | None = None  # what stands behind the id at the host, if that is something else
    accept: bytes | None = None  # the only kind of answer, whatever the client accepts

    @property
    def rest(self) -> str:
        """Of the path, behind the id. Words in braces stand for what `PARTS` allows."""
        return self.path[self.path.index("}") + 1 :]

    def target(self, path: str) -> str:
        """The path at the host, for a client's path. It has nothing in it that needs escaping."""
        prefix, at_host = self.family.prefix, self.family.at_host
        if self.as_other is None:
            return at_host + path[len(prefix) :]
        return at_host + path[len(prefix) : len(prefix) + ID_CHARS] + self.as_other


FAMILIES = (
    Family("/v1/sandboxes/", "/v1/sandboxes/", SANDBOX, sandbox_id),
    Family("/api/v1/tasks/", "/v1/tasks/", TASK, task_id),
    Family("/api/v1/jobs/", "/v1/tasks/", TASK, task_id),
)
_SAID = {each.name: each for each in TABLE}


def _answered(name: str, handler: Handler) -> Operation:
    said = _SAID[name]
    return Operation(name, said.method, said.path, said.scope, handler)


def _passed(name: str, access: Access, answer_s: float = ANSWER_S, **more: Any) -> Passed:
    said = _SAID[name]
    family = next(each for each in FAMILIES if said.path.startswith(each.prefix))
    scope = Scope(said.scope or "")  # what belongs to somebody needs a key
    return Passed(name, said.method, said.path, scope, access, family, answer_s, **more)


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
    _answered("create_task", tasks.create),
    _answered("list_tasks", tasks.listed),
    _answered("retry_task", tasks.retry),
    _answered("create_job", jobs.create),
    _answered("list_jobs", jobs.listed),
    _answered("get_job", jobs.get),
    _answered("stop_job", jobs.stop),
    _answered("list_workspaces", workspaces.listed),
    _answered("get_workspace", workspaces.get),
    _answered("delete_workspace", workspaces.delete),
    _answered("list_versions", workspaces.versions),
    _answered("diff_versions", workspaces.diff),
    _answered("read_version", workspaces.archive),
    _answered("restore_version", workspaces.restore),
    _answered("list_templates", workspaces.get),
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
    _passed("pause_sandbox", Access.WRITE, STORE_S),
    _passed("resume_sandbox", Access.WRITE, STORE_S),
    _passed("hibernate_sandbox", Access.WRITE, STORE_S),
    _passed("recover_drive", Access.READ, STORE_S),
    _passed("save_workspace", Access.WRITE, STORE_S),
    _passed("set_timeout", Access.WRITE),
    _passed("set_port", Access.WRITE),
    _passed("get_network", Access.READ),
    _passed("set_network", Access.WRITE),
    _passed("get_egress", Access.READ),
    _passed("terminal", Access.WRITE),
    _passed("browser_open", Access.WRITE, BROWSER_S),
    _passed("browser_click", Access.WRITE, BROWSER_S),
    _passed("browser_type", Access.WRITE, BROWSER_S),
    _passed("browser_evaluate", Access.WRITE, BROWSER_S),
    _passed("browser_close", Access.WRITE),
    _passed("get_task", Access.READ),
    _passed("get_task_events", Access.READ),
    _passed("get_task_steps", Access.READ),
    _passed("stop_task", Access.WRITE),
    _passed("pause_task", Access.WRITE),
    _passed("resume_task", Access.WRITE),
    _passed("input_task", Access.WRITE),
    _passed("get_task_diff", Access.READ),
    _passed("list_artifacts", Access.READ),
    _passed("read_artifact", Access.READ),
    _passed("read_archive", Access.READ),
    _passed("stream_job", Access.READ, as_other="/events", accept=STREAM.encode()),
)

PARTS = {"{port}": "[0-9]{1,5}", "{name}": ARTIFACT}


def _form_of(rest: str) -> str:
    for word, form in PARTS.items():
        rest = rest.replace(word, form)
    return rest


_BY_REST = {(each.family.prefix, each.method, each.rest): each for each in PASSED}
_BY_FORM = [(each, re.compile(_form)) for each in PASSED if (_form := _form_of(each.rest)) != each.rest]


def passed_of(method: str, path: str) -> tuple[str | None, Passed | None]:
    """The id in a path, unchecked, and what is passed to its host for it, if anything is."""
    for family in FAMILIES:
        if path.startswith(family.prefix):
            begin = len(family.prefix)
            rest = path[begin + ID_CHARS :]
            found = _BY_REST.get((family.prefix, method, rest)) or _by_form(family, method, rest)
            return path[begin : begin + ID_CHARS], found
    return None, None


def _by_form(family: Family, method: str, rest: str) -> Passed | None:
    for each, form in _BY_FORM:
        if each.family is family and each.method == method and form.fullmatch(rest):
            return each
    return None


_ALL: Sequence[Operation | Passed] = (*OPERATIONS, *PASSED)
_METHODS = [(re.compile(re.sub(r"{\w+}", "[^/]+", each.path)), each.method) for each in _ALL if each.method != "WS"]


def methods_of(path: str) -> set[str]:
    """The methods that there are under this path."""
    return {method for pattern, method in _METHODS if pattern.fullmatch(path)}
