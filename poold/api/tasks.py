"""Tasks as resources: create, list, get, steer, and what they leave behind."""

import contextlib
from dataclasses import replace
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from contract.asked import EventsAsked, TasksAsked
from contract.fields import Fields
from contract.ids import task_id
from contract.tasks import MAX_BODY_BYTES, CreateTask, Input, Task
from poold.api.audited import StreamedReply
from poold.api.listing import read_query
from poold.api.repeats import asked_of, location, once
from poold.api.replies import json_reply, read_body
from poold.api.sandboxes import no_fields, owner_of
from poold.api.services import asked_task, caller_of, services
from poold.api.tickets import ticket_of
from poold.ledger import steps, tasks
from poold.ledger.replies import Reply
from poold.tasks.keeping import ARCHIVE

ACCEPTED = 202
TEXT = "text/plain; charset=utf-8"
TYPES = {".patch": TEXT, ".txt": TEXT, ".png": "image/png", ".zst": "application/zstd"}


async def create(request: Request) -> Response:
    """A new task, under the id that the ticket names. The operator's gets one from us."""
    found, ticket = services(request), ticket_of(request)
    new_id = None if ticket is None else task_id(ticket.sandbox or "")
    body, caller = await read_body(request, MAX_BODY_BYTES), caller_of(request)

    async def make() -> Response:
        return _accepted(await found.tasks.create(CreateTask.parse(body, found.facts.limits), caller, new_id))

    async def told() -> Reply:
        return Reply(ACCEPTED, orjson.dumps((await found.tasks.get(new_id or "")).view()))

    if new_id is not None and (key := asked_of(request)) is not None:
        return await once(request, new_id, key, make, told)
    return await make()


def _accepted(task: Task) -> Response:
    return json_reply(task.view(), ACCEPTED, location(task.id))


async def listed(request: Request) -> Response:
    """Newest first; `next` is the `before` of the next page, or null on the last."""
    wanted = read_query(request, TasksAsked.read)
    one_more = replace(wanted, limit=wanted.limit + 1, owner=owner_of(request, wanted.owner))
    found = await services(request).tasks.listed(partial(tasks.listed, **vars(one_more)))
    page = found[: wanted.limit]
    following = f"{page[-1].created_ms}.{page[-1].id}" if len(found) > wanted.limit else None
    return json_reply({"tasks": [task.view() for task in page], "next": following})


async def get(request: Request) -> Response:
    return json_reply((await services(request).tasks.get(asked_task(request))).view())


async def asked(request: Request) -> Response:
    """The request that made the task, without its secrets: for who does it again."""
    return json_reply(await services(request).tasks.request_of(asked_task(request)))


async def retry(request: Request) -> Response:
    """The same task again, with what the body says in the place of what it had. For the operator: gateways create."""
    found, former = services(request), asked_task(request)
    body = await read_body(request, MAX_BODY_BYTES) or b"{}"
    Fields.parse(body)  # or it is no object
    fields = orjson.loads(body)
    wanted = {**await found.tasks.request_of(former), **fields, "retry_of": former}
    again = CreateTask.parse(orjson.dumps(wanted), found.facts.limits)
    owner, network = await found.tasks.owner_of(former), await found.tasks.key_network_of(former)
    caller = replace(caller_of(request), owner=owner, network=network)
    return _accepted(await found.tasks.create(again, caller))


async def stop(request: Request) -> Response:
    await no_fields(request)
    return json_reply((await services(request).tasks.stop(asked_task(request), caller_of(request))).view())


async def pause(request: Request) -> Response:
    await no_fields(request)
    return json_reply((await services(request).tasks.pause(asked_task(request), caller_of(request))).view())


async def resume(request: Request) -> Response:
    await no_fields(request)
    return json_reply((await services(request).tasks.resume(asked_task(request), caller_of(request))).view())


async def say(request: Request) -> Response:
    """The answer to a question, or an instruction."""
    said = Input.parse(await read_body(request))
    return json_reply((await services(request).tasks.input(asked_task(request), said, caller_of(request))).view())


async def steps_of(request: Request) -> Response:
    found, name = services(request), asked_task(request)
    wanted = read_query(request, EventsAsked.read)
    await found.tasks.get(name)
    rows = await found.ledger.read(partial(steps.after, task_id=name, number=wanted.after, limit=wanted.limit))
    return json_reply({"steps": rows})


async def diff(request: Request) -> Response:
    """What the task has changed so far, or all that it did."""
    found, name = services(request), asked_task(request)
    async with contextlib.AsyncExitStack() as stack:
        chunks, is_cut = await stack.enter_async_context(found.tasks.diff(name))
        rest = stack.pop_all()  # from here on the reply closes it
    headers = {"Warren-Truncated": "true"} if is_cut else {}
    return StreamedReply(chunks, rest, headers=headers, media_type=TEXT)


async def artifacts(request: Request) -> Response:
    found, name = services(request), asked_task(request)
    await found.tasks.get(name)
    return json_reply({"artifacts": [each.view() for each in await found.tasks.kept(name)]})


async def artifact(request: Request) -> Response:
    return await _file(request, request.path_params["name"])


async def archive(request: Request) -> Response:
    return await _file(request, ARCHIVE)


async def _file(request: Request, name: str) -> Response:
    """A file that the task left; `Range` asks for a part of it."""
    found, of = services(request), asked_task(request)
    entry = await found.tasks.artifact(of, name)
    async with contextlib.AsyncExitStack() as stack:
        opened = found.tasks.tools.artifacts.open_part(of, name, request.headers.get("range"))
        part = await stack.enter_async_context(opened)
        rest = stack.pop_all()
    headers = {"Content-Length": str(part.length), "Accept-Ranges": "bytes", "ETag": f'"{entry.sha256}"'}
    headers |= {"X-Content-Type-Options": "nosniff"}
    if not part.is_whole:
        headers["Content-Range"] = part.content_range
    return StreamedReply(
        part.chunks(),
        rest,
        status_code=200 if part.is_whole else 206,
        headers=headers,
        media_type=TYPES.get(f".{name.rpartition('.')[2]}", "application/octet-stream"),
    )
