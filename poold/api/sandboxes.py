"""Sandboxes as resources: create, list, get, pause, resume, destroy."""

from starlette.requests import Request
from starlette.responses import Response

from contract.errors import BadField
from contract.fields import Fields
from contract.ids import sandbox_id
from contract.models import MAX_TIMEOUT_S, CreateSandbox, owner_name
from contract.states import State
from contract.tickets import Access
from poold.api.audited import using
from poold.api.replies import json_reply, read_body
from poold.api.services import asked_id, caller_of, services
from poold.api.tickets import ticket_of

MAX_PAGE = 1000
DEFAULT_PAGE = 100
DEFAULT_LINES = 200
MAX_LOG_BYTES = 4 << 20


async def create(request: Request) -> Response:
    """A new sandbox, under the id that the ticket names. The operator's gets one from us."""
    found, ticket = services(request), ticket_of(request)
    new_id = None if ticket is None else sandbox_id(ticket.sandbox or "")
    wanted = CreateSandbox.parse(await read_body(request), found.facts.limits)
    sandbox = await found.sandboxes.create(wanted, caller_of(request), new_id)
    return json_reply(sandbox.view(), 201, {"Location": f"/v1/sandboxes/{sandbox.id}"})


async def listed(request: Request) -> Response:
    """Newest first; `next` is the `after` of the next page, or null on the last."""
    limit = number(request, "limit", DEFAULT_PAGE, 1, MAX_PAGE)
    after = request.query_params.get("after")
    found = await services(request).sandboxes.listed(
        owner=_owner(request),
        states=_states(request.query_params.get("state")),
        after=None if after is None else sandbox_id(after),
        limit=limit + 1,
    )
    page = found[:limit]
    following = page[-1].id if len(found) > limit else None
    return json_reply({"sandboxes": [sandbox.view() for sandbox in page], "next": following})


async def get(request: Request) -> Response:
    return json_reply((await services(request).sandboxes.get(asked_id(request))).view())


async def destroy(request: Request) -> Response:
    return json_reply((await services(request).sandboxes.destroy(asked_id(request), caller_of(request))).view())


async def pause(request: Request) -> Response:
    await _no_fields(request)
    return json_reply((await services(request).sandboxes.pause(asked_id(request), caller_of(request))).view())


async def resume(request: Request) -> Response:
    await _no_fields(request)
    return json_reply((await services(request).sandboxes.resume(asked_id(request), caller_of(request))).view())


async def timeout(request: Request) -> Response:
    fields = Fields.parse(await read_body(request))
    timeout_sec = fields.integer("timeout_sec", low=1, high=MAX_TIMEOUT_S)
    fields.end()
    moved = await services(request).sandboxes.set_timeout(asked_id(request), timeout_sec, caller_of(request))
    return json_reply(moved.view())


async def health(request: Request) -> Response:
    """What the sandbox's own guest says of itself. Asking is no use of the sandbox: it may grow idle meanwhile."""
    guest = await services(request).sandboxes.peek(asked_id(request))
    return json_reply(await guest.call("GET", "/health"))


async def logs(request: Request) -> Response:
    """The last lines of the guest's own log."""
    lines = number(request, "lines", DEFAULT_LINES, 1, 1000)
    async with using(request, "logs") as use, use.guest.exchange("GET", f"/logs?lines={lines}") as answer:
        return Response(await answer.read(MAX_LOG_BYTES), media_type="text/plain; charset=utf-8")


async def _no_fields(request: Request) -> None:
    Fields.parse(await read_body(request)).end()


def number(request: Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number of the query."""
    text = request.query_params.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 18 or not low <= int(text) <= high:
        raise BadField(name, text, f"must be a whole number from {low} to {high}")
    return int(text)


def _owner(request: Request) -> str | None:
    """Whose sandboxes are listed: the caller's own. An admin and the operator see everybody's, or those of one."""
    ticket = ticket_of(request)
    if ticket is not None and ticket.access is not Access.ADMIN:
        return ticket.owner
    asked = request.query_params.get("owner")
    return None if asked is None else owner_name(asked)


def _states(text: str | None) -> list[State]:
    """The states asked for; all but `stopped` when none are."""
    if text is None:
        return [state for state in State if state is not State.STOPPED]
    names = text.split(",")
    for name in names:
        if name not in list(State):
            raise BadField("state", name, f"must be one of {', '.join(State)}")
    return [State(name) for name in names]
