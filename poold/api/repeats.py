"""Creates that may come twice: the same id with the same request gets the same reply for a day.

A gateway sends `Warren-Asked`, a hash of its client's request, where the client gave an idempotency key. What is kept:

- A success: whoever lost our reply hears it again, whatever became of the sandbox since.
- A failure or a refusal, too: the id is spent, and nothing will ever be created under it. A gateway that was refused
  gives the room that it reserved back, and may rely on it that no repeat of its request, which another gateway may
  just be sending, gets a sandbox under this id after all. To try again it takes another id.

A reply that was not kept, because the host was killed just then, is told by the sandbox itself. If there is no sandbox,
nothing happened, and the repeat is the first.
"""

import contextlib
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from contract.errors import BadField, NotFound, WarrenError
from contract.models import Sandbox
from contract.states import State
from poold.api.replies import json_reply
from poold.api.services import Services, services
from poold.errors import MachineDied, SandboxStopped
from poold.ledger import replies
from poold.ledger.replies import Reply
from poold.lifetimes import finish

ASKED = re.compile(r"[0-9a-f]{64}")
HEADER = "warren-asked"
REPLAYED = {"Idempotent-Replayed": "true"}
MADE = (201, 202)

Make = Callable[[], Awaitable[Response]]
Told = Callable[[], Awaitable[Reply]]


def asked_of(request: Request) -> str | None:
    """The hash of what the client asked for; None if its request may not be repeated."""
    asked = request.headers.get(HEADER)
    if asked is not None and not ASKED.fullmatch(asked):
        raise BadField(HEADER, asked, "must be a SHA-256 in hex")
    return asked


def created(sandbox: Sandbox) -> Response:
    return json_reply(sandbox.view(), 201, location(sandbox.id))


async def once(request: Request, name: str, asked: str, make: Make, told: Told) -> Response:
    """What `make` comes to, or what it came to before. A client that leaves does not cut it short: it will ask again.

    A repeat that comes while the first is under way waits for it. `name` is the id of what is made, and `told` says
    what a reply that was not kept must have been, or raises `NotFound` if nothing was made.
    """
    found = services(request)
    async with found.sandboxes.repeats.of(name):
        reply = await _known(found, name, asked, told)
        if reply is not None:
            return _replayed(name, reply)
        return await finish(_first(found, name, asked, make))


async def _first(found: Services, sandbox_id: str, asked: str, make: Make) -> Response:
    try:
        reply = await make()
    except WarrenError as error:
        await _keep(found, sandbox_id, asked, Reply(error.status, orjson.dumps(error.body())))
        raise
    await _keep(found, sandbox_id, asked, Reply(reply.status_code, bytes(reply.body)))
    return reply


async def _keep(found: Services, sandbox_id: str, asked: str, reply: Reply) -> None:
    now_ms = found.sandboxes.now_ms()
    keep = partial(replies.keep, sandbox_id=sandbox_id, asked=asked, reply=reply, now_ms=now_ms)
    with contextlib.suppress(WarrenError):  # the disk is full: the sandbox, if there is one, tells a repeat
        # A success is as durable as what was made.
        await found.ledger.write(keep, durable=reply.status not in MADE)


async def _known(found: Services, sandbox_id: str, asked: str, told: Told) -> Reply | None:
    now_ms = found.sandboxes.now_ms()
    reply = await found.ledger.read(lambda db: replies.get(db, sandbox_id, asked, now_ms=now_ms))
    if reply is None:
        with contextlib.suppress(NotFound):
            reply = await told()
            await _keep(found, sandbox_id, asked, reply)
    return reply


def told_by(sandbox: Sandbox) -> Reply:
    """What a create whose reply is lost must have come to."""
    if sandbox.started_ms is not None:
        return Reply(201, orjson.dumps(sandbox.view()))
    kind = SandboxStopped if sandbox.state is State.STOPPED else MachineDied
    error = kind(f"sandbox {sandbox.id} was not created: {sandbox.reason}", state=sandbox.state)
    return Reply(error.status, orjson.dumps(error.body()))


def _replayed(sandbox_id: str, reply: Reply) -> Response:
    headers = location(sandbox_id) if reply.status in MADE else _retry_after(orjson.loads(reply.body))
    return Response(reply.body, reply.status, {**headers, **REPLAYED}, media_type="application/json")


def _retry_after(body: Any) -> dict[str, str]:
    seconds = body["error"].get("retry_after_s")
    return {} if seconds is None else {"Retry-After": str(seconds)}


def location(name: str) -> dict[str, str]:
    """Where what was made is found."""
    return {"Location": f"/v1/{'tasks' if name.startswith('tk-') else 'sandboxes'}/{name}"}
