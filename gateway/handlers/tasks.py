"""Tasks: create, list, try again. All else about one task is passed to its host."""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from contract.asked import TasksAsked
from contract.errors import BadField
from contract.fields import Fields
from contract.ids import task_id
from contract.tasks import MAX_BODY_BYTES
from contract.tickets import Access
from gateway.creation import Made, repeat_of
from gateway.errors import HostUnreachable
from gateway.handlers import asking
from gateway.handlers.asking import on_its_host
from gateway.handlers.making import headers_of, idempotency_key, made
from gateway.handlers.queries import read_query
from gateway.replies import json_reply, read_body
from gateway.services import Call, call_of

ASKED_BYTES = 2 * MAX_BODY_BYTES  # of what a task was asked for, as a host writes it

MACHINE = ("image", "vcpus", "memory_mb", "disk_mb")


async def create(request: Request) -> Response:
    return created(await made_of(request, await read_body(request, MAX_BODY_BYTES)))


def created(found: Made) -> Response:
    return json_reply(found.answer.value, 202, headers_of(found, f"/api/v1/tasks/{found.id}"))


async def made_of(request: Request, body: bytes, asked: bytes | None = None, about: str = "") -> Made:
    """The task that `body` asks for. `asked` and `about`: what the client has said, if that is something else.

    One that is tried again is made on the host of the first, where the secrets are.
    """
    call = call_of(request)
    repeat = repeat_of(call.who.owner, idempotency_key(request), body if asked is None else asked, about)
    wish = call.services.creation.task_wish(call.who.key, body, call.request_id, repeat)
    if wish.retry_of is not None:
        wish = wish.only_on(await _host_of(call, wish.retry_of))
    return await made(request, wish)


async def _host_of(call: Call, task: str) -> str:
    """The host that has the caller's task. Another's does not exist."""
    (await on_its_host(call, "GET", task, f"/v1/tasks/{task}", Access.READ)).or_raise()
    return await call.services.hosts.find(task)


async def listed(request: Request) -> Response:
    """Newest first, over all hosts. Hosts that could not be asked are named in `incomplete`."""
    rows, following, silent = await page(request)
    return json_reply({"tasks": rows, "next": following, "incomplete": silent})


async def page(request: Request) -> tuple[list[Any], str | None, list[str]]:
    """The tasks that a request asks for, the cursor behind them, and the hosts that could not be asked."""
    asked = read_query(request, TasksAsked.read)
    pages, silent = await asking.listed(call_of(request), "/v1/tasks", asked.encode(), asked.owner)
    return *asking.merged(pages, asked.limit, "tasks"), silent


async def retry(request: Request) -> Response:
    """A new task, as the first was asked for, with the body's fields in place of its own."""
    call = call_of(request)
    call.sandbox = first = task_id(request.path_params["task_id"])
    body = await read_body(request, MAX_BODY_BYTES)
    Fields.parse(body)  # an object, or nothing
    changes: dict[str, Any] = orjson.loads(body) if body else {}
    if changes.get("retry_of") not in (None, first):
        raise BadField("retry_of", changes["retry_of"], f"is {first} here")
    again = {**again_of(await _asked(call, first), changes), "retry_of": first}
    return created(await made_of(request, orjson.dumps(again), body, f"retry {first} "))


def again_of(asked: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """What is asked for the second time. Another agent or image comes with its own machine."""
    if not changes.keys().isdisjoint(("agent", "image")):
        asked = {name: value for name, value in asked.items() if name not in MACHINE}
    return {**asked, **changes}


async def _asked(call: Call, task: str) -> dict[str, Any]:
    """What the caller's task was asked for, without its secrets."""
    target = f"/v1/tasks/{task}/request"
    try:
        answer = await on_its_host(call, "GET", task, target, Access.WRITE, max_bytes=ASKED_BYTES)
    except HostUnreachable as error:
        told = f"{error.message}; what {task} was asked for, and its secrets, are on its host alone"
        raise HostUnreachable(f"{told}: come back later, or create a task with its secrets") from None
    found: dict[str, Any] = answer.or_raise()
    return found
