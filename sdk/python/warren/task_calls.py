"""Every request about tasks, and how its reply is read. As `calls`: no I/O."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict
from urllib.parse import quote

from warren.calls import (
    EVENT_STREAM,
    MAX_PAGE,
    Call,
    NetworkAsked,
    Reply,
    given,
    network_of,
    nothing,
    object_of,
    one,
    query_of,
    rows_of,
)
from warren.models import Page, read
from warren.task_models import Artifact, Diff, Step, TaskEvent, TaskInfo, View, read_task, read_view

TASKS = "/api/v1/tasks"


class TaskOptions(TypedDict, total=False):
    """What a task can be asked to be; what is not said is as the host has it."""

    model: str
    repo: str  # an address of http or https; a password in it is used, and never shown
    ref: str  # a branch, a tag or a commit
    depth: int
    branch: str  # that the work is committed on
    push: bool
    image: str
    vcpus: int
    memory_mb: int
    disk_mb: int
    network: NetworkAsked
    env: Mapping[str, str]
    secrets: Sequence[str]  # names of what the operator keeps
    caps: Mapping[str, Any]  # steps, tokens, usd, wall_sec, output_bytes
    loop: Mapping[str, int]  # same_diff, same_failure
    approvals: Mapping[str, Any]  # tools, commands, push, hosts, spend_usd, pause_after_sec
    checkpoint: Mapping[str, int]  # steps, minutes
    retries: int  # machines that may be lost
    keep_minutes: int
    webhook: Mapping[str, str]  # url, secret
    metadata: Mapping[str, str]
    workspace: str  # in place of a repository: what was saved under this name, and is saved under it at the end


def create(prompt: str, agent: str, options: TaskOptions, idempotency_key: str | None = None) -> Call[TaskInfo]:
    """It has a key of its own, so that a second try gives the same task."""
    return _made(TASKS, {"prompt": prompt, "agent": agent, **options}, idempotency_key)


def retry(task: str, changes: Mapping[str, Any], idempotency_key: str | None = None) -> Call[TaskInfo]:
    return _made(f"{_one(task)}/retry", changes, idempotency_key)


def get(task: str) -> Call[TaskInfo]:
    return Call("GET", _one(task), _task, is_repeatable=True)


def listed(
    states: str | Sequence[str] | None, agent: str | None, owner: str | None, before: str | None, limit: int = MAX_PAGE
) -> Call[Page[TaskInfo]]:
    state = states if isinstance(states, str | None) else ",".join(states)
    asked = {"state": state, "agent": agent, "owner": owner, "before": before, "limit": limit}
    return Call("GET", TASKS, _page, query=query_of(asked), is_repeatable=True)


def act(task: str, what: str) -> Call[TaskInfo]:
    """`stop`, `pause` or `resume` it. To stop one that has ended changes nothing."""
    return Call("POST", f"{_one(task)}/{what}", _task, body={}, is_repeatable=what == "stop")


def say(task: str, kind: str, question: str | None, text: str) -> Call[TaskInfo]:
    """The same answer to a question changes nothing. An instruction is never sent twice: it would be obeyed twice."""
    body = given({"kind": kind, "id": question, "text": text})
    return Call("POST", f"{_one(task)}/input", _task, body=body, is_repeatable=question is not None)


def events(task: str, after: int) -> Call[list[TaskEvent]]:
    query = query_of({"after": after, "limit": MAX_PAGE})
    return Call("GET", f"{_one(task)}/events", _events, query=query, is_repeatable=True)


def event_stream(task: str, after: int) -> Call[None]:
    headers = {"Accept": EVENT_STREAM, "Last-Event-ID": str(after)}
    return Call("GET", f"{_one(task)}/events", nothing, headers=headers, is_repeatable=True)


def steps(task: str, after: int) -> Call[list[Step]]:
    query = query_of({"after": after, "limit": MAX_PAGE})
    return Call("GET", f"{_one(task)}/steps", _steps, query=query, is_repeatable=True)


def diff(task: str) -> Call[Diff]:
    return Call("GET", f"{_one(task)}/diff", _diff, headers={"Accept": "text/plain, */*"}, is_repeatable=True)


def artifacts(task: str) -> Call[list[Artifact]]:
    return Call("GET", f"{_one(task)}/artifacts", _artifacts, is_repeatable=True)


def artifact(task: str, name: str) -> Call[None]:
    headers = {"Accept": "*/*"}
    return Call("GET", f"{_one(task)}/artifacts/{quote(name, safe='')}", nothing, headers=headers, is_repeatable=True)


def archive(task: str) -> Call[None]:
    return Call("GET", f"{_one(task)}/archive", nothing, headers={"Accept": "*/*"}, is_repeatable=True)


def browse(sandbox: str, what: str, fields: Mapping[str, Any]) -> Call[View]:
    """Never sent twice: a click may do anything."""
    return Call("POST", f"{one(sandbox)}/browser/{what}", _view, body=given(fields))


def close_browser(sandbox: str) -> Call[None]:
    return Call("POST", f"{one(sandbox)}/browser/close", nothing, body={}, is_repeatable=True)


def _one(task: str) -> str:
    return f"{TASKS}/{quote(task, safe='')}"


def _made(path: str, fields: Mapping[str, Any], idempotency_key: str | None) -> Call[TaskInfo]:
    body = given({**fields, "network": network_of(fields.get("network"))})
    headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    return Call("POST", path, _task, body=body, headers=headers, is_repeatable=True)


def _task(reply: Reply) -> TaskInfo:
    return read_task(reply.json())


def _page(reply: Reply) -> Page[TaskInfo]:
    rows = [read_task(row) for row in rows_of(reply, "tasks")]
    told = object_of(reply)
    return Page(rows, told.get("next"), tuple(str(host) for host in told.get("incomplete") or ()))


def _events(reply: Reply) -> list[TaskEvent]:
    return [read(TaskEvent, row) for row in rows_of(reply, "events")]


def _steps(reply: Reply) -> list[Step]:
    return [read(Step, row) for row in rows_of(reply, "steps")]


def _artifacts(reply: Reply) -> list[Artifact]:
    return [read(Artifact, row) for row in rows_of(reply, "artifacts")]


def _diff(reply: Reply) -> Diff:
    return Diff(reply.body, reply.headers.get("warren-truncated", "").lower() == "true")


def _view(reply: Reply) -> View:
    return read_view(reply.json())
