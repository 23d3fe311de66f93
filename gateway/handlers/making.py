"""Creates, whatever is made: once for an idempotency key, and never for nobody."""

import asyncio
import re
from typing import Any

from starlette.requests import Request

from contract.asked import IDEMPOTENCY_KEY
from contract.errors import BadField, WarrenError
from gateway.creation import Made, Wish, is_replayed
from gateway.services import Services, call_of


async def made(request: Request, wish: Wish) -> Made:
    """A client that leaves meanwhile gets what it asked for if it can ask again, else it is ended."""
    call = call_of(request)
    work = call.services.background.start(call.services.creation.create(wish))
    if not await _is_done(request, work) and wish.repeat is None:
        call.services.background.start(_undone(call.services, call.who.owner, work))
    found = await asyncio.shield(work)
    call.sandbox = found.id
    return found


def idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not re.fullmatch(IDEMPOTENCY_KEY, key):
        raise BadField("Idempotency-Key", key, "must be 1 to 255 printable ASCII characters without spaces")
    return key


def headers_of(found: Made, location: str) -> dict[str, str]:
    """Of the reply to a create."""
    return {"Location": location, **({"Idempotent-Replayed": "true"} if is_replayed(found.answer) else {})}


async def _undone(services: Services, owner: str, work: "asyncio.Task[Made]") -> None:
    try:
        found = await asyncio.shield(work)
    except WarrenError:
        return  # there is nothing
    await services.creation.undo(found.kind, owner, found.id)


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
