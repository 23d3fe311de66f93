"""Jobs: tasks on a repository, in the words that others use for them. A job's id is that of its task."""

from datetime import UTC, datetime
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from contract.errors import BadField
from contract.fields import Fields
from contract.ids import task_id
from contract.tasks import MAX_BODY_BYTES
from contract.tickets import Access
from gateway.handlers import tasks
from gateway.handlers.asking import on_its_host
from gateway.handlers.making import headers_of
from gateway.operations.jobs import JobAsked
from gateway.replies import json_reply, read_body
from gateway.services import call_of

STOP_S = 60.0


async def create(request: Request) -> Response:
    body = await read_body(request, MAX_BODY_BYTES)
    asked = read_asked(body)
    task = asked.task(call_of(request).services.config.jobs_agent)
    found = await tasks.made_of(request, orjson.dumps(task), body, "job ")
    return json_reply(job(found.answer.value), 202, headers_of(found, f"/api/v1/jobs/{found.id}"))


def read_asked(body: bytes) -> JobAsked:
    fields = Fields.parse(body)
    try:
        asked = JobAsked.read(fields)
    except BadField as error:
        raise (error.unshown() if error.field == "repoUrl" else error) from None  # it may have a password in it
    fields.end()
    return asked


async def listed(request: Request) -> Response:
    rows, following, silent = await tasks.page(request)
    return json_reply({"jobs": [job(row) for row in rows], "next": following, "incomplete": silent})


async def get(request: Request) -> Response:
    return json_reply(job(await _on_its_host(request, "GET", "", Access.READ)))


async def stop(request: Request) -> Response:
    Fields.parse(await read_body(request)).end()
    return json_reply(job(await _on_its_host(request, "POST", "/stop", Access.WRITE)))


async def _on_its_host(request: Request, method: str, behind: str, access: Access) -> Any:
    call = call_of(request)
    call.sandbox = found = task_id(request.path_params["job_id"])
    target = f"/v1/tasks/{found}{behind}"
    return (await on_its_host(call, method, found, target, access, limit_s=STOP_S)).or_raise()


def job(task: dict[str, Any]) -> dict[str, Any]:
    """A task, as a job."""
    return {
        "jobId": task["id"],
        "status": task["state"],
        "repoUrl": task["repo"],
        "taskDesc": task["prompt"],
        "agent": task["agent"],
        "model": task["model"],
        "branch": task["branch"],
        "createdAt": _at(task["created_ms"]),
        "startedAt": _at(task["started_ms"]),
        "endedAt": _at(task["ended_ms"]),
        "reason": task["reason"],
        "result": task["result"],
        "events": f"/api/v1/jobs/{task['id']}/stream",
        "task": f"/api/v1/tasks/{task['id']}",
    }


def _at(at_ms: int | None) -> str | None:
    """A time as RFC 3339 writes it."""
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
