"""Emptying this host, as its operator asks for it, and what the operator did."""

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from contract.errors import BadField
from contract.fields import Fields
from poold.api.replies import json_reply, read_body
from poold.api.services import Services, caller_of, services
from poold.api.streams import event_stream, sse
from poold.drain import Asked, CannotDrain, in_place
from poold.drain.departure import ALONE
from poold.drain.means import USUAL_S
from poold.drain.progress import Progress
from poold.ledger import audit

MODES = ("move", "pause", "destroy")
MAX_S = 86_400


async def drain(request: Request) -> Response:
    """Of a drain that moves everything, this tells; it goes on whether anybody listens or not."""
    fields = Fields.parse(await read_body(request))
    mode = fields.text("mode", max_chars=16, default="pause")
    timeout_s = fields.integer("timeout_sec", low=1, high=MAX_S, default=USUAL_S)
    is_forced = fields.flag("force", default=False)
    fields.end()
    if mode not in MODES:
        raise BadField("mode", mode, f"must be one of {', '.join(MODES)}")
    found = services(request)
    if mode == "move":
        if found.departure is None:
            raise CannotDrain(ALONE)
        return event_stream(_told(await found.departure.begin(Asked(timeout_s, is_forced), caller_of(request))))
    if found.departure is not None and found.departure.under_way is not None:
        raise CannotDrain("everything of this host is being moved away: see pooldctl drain, or undrain it first")
    await note(request, "host.drain", mode=mode)
    return event_stream(_draining(request, mode))


async def _told(progress: Progress) -> AsyncIterator[bytes]:
    async for told in progress.listen():
        yield b": still here\n\n" if told is None else sse(*told)


async def _draining(request: Request, mode: str) -> AsyncIterator[bytes]:
    host = services(request).sandboxes
    done, failed = [], {}
    async for sandbox_id, error in in_place(host, mode, caller_of(request)):
        if error is None:
            done.append(sandbox_id)
        else:
            failed[sandbox_id] = error.message
        left = len(host.machines())
        yield sse("progress", {"sandbox": sandbox_id, "done": len(done), "left": left, "failed": len(failed)})
    ended = {"paused": [], "destroyed": [], "failed": failed, ("paused" if mode == "pause" else "destroyed"): done}
    yield sse("drained", ended)


async def undrain(request: Request) -> Response:
    found = services(request)
    await note(request, "host.undrain")
    if found.departure is not None:
        await found.departure.undrain()
    else:
        found.sandboxes.is_draining = False
    return json_reply({"draining": found.sandboxes.is_draining})


def drain_of(found: Services) -> dict[str, Any] | None:
    """The drain that is under way."""
    row = None if found.departure is None else found.departure.under_way
    return None if row is None else row.view()


async def note(request: Request, action: str, **detail: Any) -> None:
    """The operator's doings are written down before they are done."""
    found, caller = services(request), caller_of(request)
    entry = audit.Entry(found.sandboxes.now_ms(), action, owner="operator", request=caller.request, detail=detail)
    await found.ledger.write(lambda db: audit.add(db, entry))
