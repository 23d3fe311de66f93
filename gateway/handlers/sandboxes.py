"""Sandboxes: create, list, destroy, attach. All else about one sandbox is passed to its host."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from contract.asked import ListAsked, is_discarded
from contract.errors import WrongState
from contract.fields import Fields
from contract.ids import sandbox_id
from contract.states import State
from contract.tickets import Access
from gateway.handlers import asking
from gateway.handlers.asking import on_its_host
from gateway.handlers.making import headers_of, idempotency_key, made
from gateway.handlers.queries import read_query
from gateway.hosts import Answer
from gateway.replies import json_reply, read_body
from gateway.services import Call, call_of

DESTROY_S = 3600.0  # its workspace is saved first


async def create(request: Request) -> Response:
    call = call_of(request)
    body = await read_body(request)
    wish = call.services.creation.wish(call.who.key, body, call.request_id, idempotency_key(request))
    found = await made(request, wish)
    return json_reply(found.answer.value, 201, headers_of(found, f"/v1/sandboxes/{found.id}"))


async def listed(request: Request) -> Response:
    """Newest first, over all hosts. Hosts that could not be asked are named in `incomplete`."""
    asked = read_query(request, ListAsked.read)
    pages, silent = await asking.listed(call_of(request), "/v1/sandboxes", asked.encode(), asked.owner)
    rows, following = asking.merged(pages, asked.limit)
    return json_reply({"sandboxes": rows, "next": following, "incomplete": silent})


async def destroy(request: Request) -> Response:
    """Destroys to the end, also if the client leaves meanwhile; then its room is the owner's again."""
    call = call_of(request)
    call.sandbox = sandbox_id(request.path_params["sandbox_id"])
    discard = read_query(request, is_discarded)
    answer = await asyncio.shield(call.services.background.start(_destroyed(call, call.sandbox, discard=discard)))
    return json_reply(answer.or_raise())


async def _destroyed(call: Call, sandbox: str, *, discard: bool) -> Answer:
    target = f"/v1/sandboxes/{sandbox}" + ("?discard=1" if discard else "")
    answer = await on_its_host(call, "DELETE", sandbox, target, Access.WRITE, limit_s=DESTROY_S)
    if answer.status < 300:
        owner = answer.value.get("owner", call.who.owner)
        await call.services.quotas.release(owner, [sandbox])
    return answer


async def looked_at(call: Call, sandbox: str) -> Answer:
    """The caller's sandbox, as its host says."""
    return await on_its_host(call, "GET", sandbox, f"/v1/sandboxes/{sandbox}", Access.READ)


async def attach(request: Request) -> Response:
    """A ticket for one terminal, the host's own address and who vouches for it: the terminal bypasses the gateway."""
    call = call_of(request)
    call.sandbox = sandbox_id(request.path_params["sandbox_id"])
    Fields.parse(await read_body(request)).end()
    found = (await looked_at(call, call.sandbox)).or_raise()
    if found["state"] in (State.STOPPED, State.ERROR):
        raise WrongState(f"cannot attach to a sandbox that is {found['state']}", state=found["state"])
    host = await call.services.hosts.find(call.sandbox)
    address = next(record.address for record in call.services.hosts.records() if record.name == host)
    ticket, expires_ms = call.services.tickets.once(host, call.who.owner, Access.ATTACH, call.sandbox)
    url = f"ws{address.removeprefix('http')}/v1/sandboxes/{call.sandbox}/terminal"
    ca = await asyncio.to_thread(call.services.config.pki.ca.read_text) if url.startswith("wss:") else None
    return json_reply({"url": url, "ticket": ticket, "expires_ms": expires_ms, "ca": ca})
