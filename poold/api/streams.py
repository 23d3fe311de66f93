"""Server-sent events: the format, and the ledger's event streams told as they grow."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from contract.asked import EventsAsked
from contract.errors import BadField
from contract.states import State
from poold.api.audited import StreamedReply
from poold.api.listing import number, read_query
from poold.api.replies import json_reply
from poold.api.services import asked_id, services
from poold.ledger import Ledger, events

T = TypeVar("T")
EVENT_STREAM = "text/event-stream"
KEEPALIVE_S = 15.0
MAX_PAGE = 1000
LAST = {State.STOPPED.value, State.ERROR.value}  # kinds after which a sandbox's timeline has nothing more to tell


def sse(kind: str, data: Any, number: int | None = None) -> bytes:
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))


def event_stream(body: AsyncIterator[bytes], rest: contextlib.AsyncExitStack | None = None) -> Response:
    headers = {"Cache-Control": "no-store"}
    return StreamedReply(body, rest or contextlib.AsyncExitStack(), media_type=EVENT_STREAM, headers=headers)


def wants_stream(request: Request) -> bool:
    return EVENT_STREAM in request.headers.get("accept", "")


async def of_sandbox(request: Request) -> Response:
    """The timeline of one sandbox: a page, or a stream that goes on until the sandbox has ended."""
    found, sandbox_id = services(request), asked_id(request)
    sandbox = await found.sandboxes.get(sandbox_id)
    asked = read_query(request, EventsAsked.read)
    after = after_of(request, asked.after)  # where a stream broke off counts more
    if wants_stream(request):
        is_over = sandbox.state.value in LAST
        await must_be_reached(found.ledger, sandbox_id, after, is_over=is_over)
        batches = _pages(found.ledger, sandbox_id, after) if is_over else found.ledger.follow(sandbox_id, after)
        return event_stream(_timeline(batches, is_over=is_over))
    page = await found.ledger.read(lambda db: events.after(db, sandbox_id, after, asked.limit))
    return json_reply({"events": [event.view() for event in page]})


async def must_be_reached(ledger: Ledger, stream: str, after: int, *, is_over: bool) -> None:
    """Whoever follows from an event that there is not would hear nothing until then. One that is over ends at once."""
    last = await ledger.read(lambda db: events.last_seq(db, stream))
    if after > last and not is_over:
        raise BadField("after", after, f"must be at most {last}, the last event so far")


async def of_host(request: Request) -> Response:
    """The events of all sandboxes, in the order in which they were written down."""
    ledger = services(request).ledger
    if wants_stream(request):
        after = after_of(request, await ledger.read(events.newest_id))
        return event_stream(_everything(ledger.follow(None, after)))
    after, limit = after_of(request, 0), number(request, "limit", 100, 1, MAX_PAGE)
    page = await ledger.read(lambda db: events.everything_after(db, after, limit))
    return json_reply({"events": [event.view() for event in page]})


def after_of(request: Request, default: int) -> int:
    text = request.headers.get("last-event-id") or request.query_params.get("after") or str(default)
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadField("after", text, "must be the number of an event")
    return int(text)


async def _timeline(batches: AsyncIterator[list[events.Event]], *, is_over: bool) -> AsyncIterator[bytes]:
    """Ends after the last event. Of a sandbox that is over, what is there is all."""
    async for batch in alive(batches):
        yield b"".join(sse(event.kind, event.view(), event.seq) for event in batch) or b": still here\n\n"
        if not is_over and any(_is_last(event) for event in batch):
            return


async def _pages(ledger: Ledger, stream: str, after: int) -> AsyncIterator[list[events.Event]]:
    """What there is of a stream behind number `after`."""
    while page := await ledger.read(partial(events.after, stream=stream, seq=after, limit=MAX_PAGE)):
        yield page
        after = page[-1].seq


def _is_last(event: events.Event) -> bool:
    """It is the end of the sandbox, told by us."""
    return event.kind in LAST and event.by == "host"


async def _everything(batches: AsyncIterator[list[events.Event]]) -> AsyncIterator[bytes]:
    async for batch in alive(batches):
        yield b"".join(sse(event.kind, event.view(), event.id) for event in batch) or b": still here\n\n"


async def alive(batches: AsyncIterator[list[T]]) -> AsyncIterator[list[T]]:
    """`batches`, and an empty one whenever nothing has come for a while, and at the beginning."""
    yield []
    waiting = asyncio.ensure_future(anext(batches))
    try:
        while True:
            done, _ = await asyncio.wait([waiting], timeout=KEEPALIVE_S)
            if not done:
                yield []
                continue
            yield waiting.result()
            waiting = asyncio.ensure_future(anext(batches))
    except StopAsyncIteration:
        return
    finally:
        waiting.cancel()
        await asyncio.wait([waiting])
