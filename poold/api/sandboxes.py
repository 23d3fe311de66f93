"""Sandboxes as resources: create, list, get, pause, resume, hibernate, destroy."""

from dataclasses import replace
from functools import partial

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse

from contract import asked
from contract.errors import BadField
from contract.fields import Fields
from contract.ids import sandbox_id
from contract.models import MAX_PORT, CreateSandbox
from contract.tickets import Access
from poold.api.audited import using
from poold.api.listing import cursor, read_query
from poold.api.repeats import asked_of, created, once, told_by
from poold.api.replies import json_reply, read_body
from poold.api.services import asked_id, caller_of, services
from poold.api.tickets import ticket_of
from poold.ledger import sandboxes
from poold.ledger.replies import Reply

MAX_LOG_BYTES = 4 << 20


async def create(request: Request) -> Response:
    """A new sandbox, under the id that the ticket names. The operator's gets one from us."""
    found, ticket = services(request), ticket_of(request)
    new_id = None if ticket is None else sandbox_id(ticket.sandbox or "")
    body, caller = await read_body(request), caller_of(request)

    async def make() -> Response:
        # Not before it is known that this is no repeat: our limits may be others since the first.
        return created(await found.sandboxes.create(CreateSandbox.parse(body, found.facts.limits), caller, new_id))

    async def told() -> Reply:
        return told_by(await found.sandboxes.get(new_id or ""))

    if new_id is not None and (key := asked_of(request)) is not None:
        return await once(request, new_id, key, make, told)
    return await make()


async def listed(request: Request) -> Response:
    """Newest first; `next` is the `before` of the next page, or null on the last."""
    wanted = read_query(request, asked.ListAsked.read)
    one_more = replace(wanted, limit=wanted.limit + 1, owner=owner_of(request, wanted.owner))
    found = await services(request).sandboxes.listed(partial(sandboxes.listed, **vars(one_more)))
    page = found[: wanted.limit]
    following = cursor(page[-1]) if len(found) > wanted.limit else None
    return json_reply({"sandboxes": [sandbox.view() for sandbox in page], "next": following})


async def get(request: Request) -> Response:
    return json_reply((await services(request).sandboxes.get(asked_id(request))).view())


async def destroy(request: Request) -> Response:
    discard = read_query(request, asked.is_discarded)
    host = services(request).sandboxes
    return json_reply((await host.destroy(asked_id(request), caller_of(request), discard=discard)).view())


async def pause(request: Request) -> Response:
    await no_fields(request)
    return json_reply((await services(request).sandboxes.pause(asked_id(request), caller_of(request))).view())


async def resume(request: Request) -> Response:
    await no_fields(request)
    return json_reply((await services(request).sandboxes.resume(asked_id(request), caller_of(request))).view())


async def hibernate(request: Request) -> Response:
    fields = Fields.parse(await read_body(request))
    kind = asked.hibernate_kind(fields)
    fields.end()
    host = services(request).sandboxes
    return json_reply((await host.hibernate(asked_id(request), caller_of(request), kind=kind)).view())


async def drive(request: Request) -> Response:
    """The disk of a hibernated sandbox, or its files, if it cannot be resumed: as much of it as can be read."""
    found = services(request).sandboxes
    read = await found.hibernation.drive(await found.get(asked_id(request)))
    headers = {"X-Content-Type-Options": "nosniff", "X-Warren-Kind": read.kind}
    if read.damaged:
        headers["X-Warren-Damaged"] = ",".join(read.damaged)
    return StreamingResponse(read.chunks, headers=headers, media_type="application/zstd")


async def timeout(request: Request) -> Response:
    fields = Fields.parse(await read_body(request))
    timeout_sec = asked.timeout_sec(fields)
    fields.end()
    moved = await services(request).sandboxes.set_timeout(asked_id(request), timeout_sec, caller_of(request))
    return json_reply(moved.view())


async def set_port(request: Request) -> Response:
    """Whether anybody may reach a port through a gateway, or only the owner."""
    fields = Fields.parse(await read_body(request))
    public = asked.is_public(fields)
    fields.end()
    port = port_of(request)
    changed = await services(request).sandboxes.set_public(asked_id(request), port, public, caller_of(request))
    return json_reply(changed.view())


def port_of(request: HTTPConnection) -> int:
    """The port in the path."""
    text = request.path_params["port"]
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= MAX_PORT:
        raise BadField("port", text, f"must be a whole number from 1 to {MAX_PORT}")
    return int(text)


async def health(request: Request) -> Response:
    """What the sandbox's own guest says of itself. Asking is no use of the sandbox: it may grow idle meanwhile."""
    guest = await services(request).sandboxes.peek(asked_id(request))
    return json_reply(await guest.call("GET", "/health"))


async def logs(request: Request) -> Response:
    """The last lines of the guest's own log."""
    lines = read_query(request, asked.log_lines)
    async with using(request, "logs") as use, use.guest.exchange("GET", f"/logs?lines={lines}") as answer:
        return Response(await answer.read(MAX_LOG_BYTES), media_type="text/plain; charset=utf-8")


async def no_fields(request: Request) -> None:
    Fields.parse(await read_body(request)).end()


def owner_of(request: Request, asked_for: str | None) -> str | None:
    """Whose are listed: the caller's own. An admin and the operator see everybody's, or those of one."""
    ticket = ticket_of(request)
    if ticket is not None and ticket.access is not Access.ADMIN:
        return ticket.owner
    return None if asked_for == asked.EVERYBODY else asked_for
