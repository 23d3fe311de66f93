"""Sandboxes: create, list, destroy, attach. All else about one sandbox is passed to its host."""

import asyncio
import re
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from contract.asked import IDEMPOTENCY_KEY, ListAsked
from contract.errors import BadField, NotFound, WarrenError, WrongState
from contract.fields import Fields
from contract.ids import sandbox_id
from contract.states import State
from contract.tickets import Access
from gateway.creation import Made, is_replayed
from gateway.errors import HostUnreachable
from gateway.handlers.queries import read_query, whose
from gateway.hosts import Answer
from gateway.replies import json_reply, read_body
from gateway.services import Call, Services, call_of

LIST_S = 5.0
DESTROY_S = 120.0


async def create(request: Request) -> Response:
    """A client that leaves meanwhile gets what it asked for if it can ask again, else it is destroyed."""
    call = call_of(request)
    wish = call.services.creation.wish(
        call.who.key, await read_body(request), call.request_id, _idempotency_key(request)
    )
    work = call.services.background.start(call.services.creation.create(wish))
    if not await _is_done(request, work) and wish.repeat is None:
        call.services.background.start(_undone(call.services, call.who.owner, work))
    made = await asyncio.shield(work)
    call.sandbox = made.id
    return json_reply(made.answer.value, 201, {"Location": f"/v1/sandboxes/{made.id}", **_replayed(made.answer)})


async def _undone(services: Services, owner: str, work: "asyncio.Task[Made]") -> None:
    try:
        made = await asyncio.shield(work)
    except WarrenError:
        return  # there is nothing
    await services.creation.undo(owner, made.id)


async def _is_done(request: Request, work: "asyncio.Task[Any]") -> bool:
    """Wait for the work or for the client to leave, whichever comes first."""
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return work.done()
    finally:
        leaving.cancel()
        await asyncio.wait({leaving})


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _replayed(answer: Answer) -> dict[str, str]:
    return {"Idempotent-Replayed": "true"} if is_replayed(answer) else {}


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not re.fullmatch(IDEMPOTENCY_KEY, key):
        raise BadField("Idempotency-Key", key, "must be 1 to 255 printable ASCII characters without spaces")
    return key


async def listed(request: Request) -> Response:
    """Newest first, over all hosts. Hosts that could not be asked are named in `incomplete`."""
    call = call_of(request)
    asked = read_query(request, ListAsked.read)
    access, owner = whose(call, asked.owner)
    target = f"/v1/sandboxes?{asked.encode()}" + (f"&{urlencode({'owner': owner})}" if owner else "")
    pages, silent = await _asked_all(call, target, access)
    rows, following = merged(pages, asked.limit)
    return json_reply({"sandboxes": rows, "next": following, "incomplete": silent})


async def _asked_all(call: Call, target: str, access: Access) -> tuple[list[Any], list[str]]:
    """What each host answers, and the names of those that did not."""
    hosts = call.services.hosts

    async def ask(name: str) -> Any:
        try:
            return (await hosts.ask(name, "GET", target, access, call.who.owner, limit_s=LIST_S)).or_raise()
        except HostUnreachable:
            return None

    names = sorted(hosts.names())
    said = await asyncio.gather(*(ask(name) for name in names))
    silent = [name for name, page in zip(names, said, strict=True) if page is None]
    return [page for page in said if page is not None], silent


def merged(pages: list[Any], limit: int) -> tuple[list[Any], str | None]:
    """The newest `limit` rows of all pages, and the cursor behind them if there are more."""
    rows = [row for page in pages for row in page["sandboxes"]]
    rows.sort(key=lambda row: (row["created_ms"], row["id"]), reverse=True)
    is_more = len(rows) > limit or any(page.get("next") for page in pages)
    rows = rows[:limit]
    return rows, f"{rows[-1]['created_ms']}.{rows[-1]['id']}" if is_more and rows else None


async def destroy(request: Request) -> Response:
    """Destroys to the end, also if the client leaves meanwhile; then its room is the owner's again."""
    call = call_of(request)
    call.sandbox = sandbox_id(request.path_params["sandbox_id"])
    answer = await asyncio.shield(call.services.background.start(_destroyed(call, call.sandbox)))
    return json_reply(answer.or_raise())


async def _destroyed(call: Call, sandbox: str) -> Answer:
    answer = await on_its_host(call, "DELETE", sandbox, Access.WRITE, limit_s=DESTROY_S)
    if answer.status < 300:
        owner = answer.value.get("owner", call.who.owner)
        await call.services.quotas.release(owner, [sandbox])
    return answer


async def attach(request: Request) -> Response:
    """A ticket for one terminal, the host's own address and who vouches for it: the terminal bypasses the gateway."""
    call = call_of(request)
    call.sandbox = sandbox_id(request.path_params["sandbox_id"])
    Fields.parse(await read_body(request)).end()
    found = (await on_its_host(call, "GET", call.sandbox, Access.READ)).or_raise()
    if found["state"] in (State.STOPPED, State.ERROR):
        raise WrongState(f"cannot attach to a sandbox that is {found['state']}", state=found["state"])
    host = await call.services.hosts.find(call.sandbox)
    address = next(record.address for record in call.services.hosts.records() if record.name == host)
    ticket, expires_ms = call.services.tickets.once(host, call.who.owner, Access.ATTACH, call.sandbox)
    url = f"ws{address.removeprefix('http')}/v1/sandboxes/{call.sandbox}/terminal"
    ca = await asyncio.to_thread(call.services.config.pki.ca.read_text) if url.startswith("wss:") else None
    return json_reply({"url": url, "ticket": ticket, "expires_ms": expires_ms, "ca": ca})


async def on_its_host(call: Call, method: str, sandbox: str, access: Access, *, limit_s: float = 30.0) -> Answer:
    """Ask the host that has the sandbox, wherever that is now."""
    hosts = call.services.hosts
    headers = [(b"x-request-id", call.request_id.encode())]
    for _ in range(2):
        host = await hosts.find(sandbox)
        target = f"/v1/sandboxes/{sandbox}"
        answer = await hosts.ask(
            host, method, target, access, call.who.owner, sandbox, headers=headers, limit_s=limit_s
        )
        if not is_not_mine(answer):
            return answer
        hosts.forget(sandbox)
    raise NotFound(f"no sandbox {sandbox}", sandbox=sandbox)


def is_not_mine(answer: Answer) -> bool:
    return answer.status == 404 and any(name == b"warren-not-mine" for name, _ in answer.headers)
