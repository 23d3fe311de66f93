"""The events of a task: a page of them, or a stream that goes on until the task has ended.

A thousand may follow one task. Those who are equally far share one read of the ledger and one encoding of what was
read; each of them is sent it at its own pace, and whoever reads slowly gets more at once.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from contract.asked import EventsAsked
from contract.task_states import FINAL
from poold.api.listing import read_query
from poold.api.replies import json_reply
from poold.api.services import asked_task, services
from poold.api.streams import after_of, alive, event_stream, must_be_reached, sse, wants_stream
from poold.ledger import Ledger, events
from poold.ledger.events import Event
from poold.ledger.follow import BATCH_BYTES
from poold.ledger.tasks import LAST

MAX_PAGE = 1000
PING = b": ping\n\n"
KNOWN = 16  # batches whose encoding is remembered
MOST_BYTES = 2 << 20  # of one that is
PACE_S = 0.00025  # for each of those who follow a task: a thousand of them hear of something within a quarter second
MOST_PACE_S = 0.25


async def of_task(request: Request) -> Response:
    found, task_id = services(request), asked_task(request)
    task = await found.tasks.get(task_id)
    asked = read_query(request, EventsAsked.read)
    after = after_of(request, asked.after)  # where a stream broke off counts more
    if wants_stream(request):
        is_over = task.state in FINAL
        await must_be_reached(found.ledger, task_id, after, is_over=is_over)
        batches = _pages(found.ledger, task_id, after) if is_over else found.ledger.follow(task_id, after)
        return event_stream(_told(batches, task_id, is_over=is_over))
    page = await found.ledger.read(lambda db: events.after(db, task_id, after, asked.limit))
    return json_reply({"events": [event.view() for event in page]})


async def _told(batches: AsyncIterator[list[Event]], task_id: str, *, is_over: bool) -> AsyncIterator[bytes]:
    """Ends after the last event. Of a task that is over, what is there is all."""
    with _CROWD.joined(task_id):
        async for batch in alive(batches):
            yield _CROWD.encoded(batch) if batch else PING
            if not is_over and any(event.kind in LAST and event.by == "host" for event in batch):
                return
            if batch:
                await asyncio.sleep(_CROWD.pace_s(task_id))


class _Crowd:
    """Who follows which task, and the last batches as they are sent.

    Followers who share a read have the same list, and not an equal one: it is encoded once for all of them. In a crowd
    each waits a little before it looks for more, and then gets more at once.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[list[Event], bytes]] = {}
        self._following: Counter[str] = Counter()

    @contextlib.contextmanager
    def joined(self, task_id: str) -> Iterator[None]:
        self._following[task_id] += 1
        try:
            yield
        finally:
            self._following[task_id] -= 1
            if not self._following[task_id]:
                del self._following[task_id]

    def pace_s(self, task_id: str) -> float:
        return min(MOST_PACE_S, PACE_S * (self._following[task_id] - 1))

    def encoded(self, batch: list[Event]) -> bytes:
        known = self._known.get(id(batch))
        if known is not None and known[0] is batch:
            return known[1]
        data = b"".join(sse(event.kind, event.view(), event.seq) for event in batch)
        if len(data) <= MOST_BYTES:
            while len(self._known) >= KNOWN:
                del self._known[next(iter(self._known))]
            self._known[id(batch)] = (batch, data)
        return data


_CROWD = _Crowd()


async def _pages(ledger: Ledger, stream: str, after: int) -> AsyncIterator[list[Event]]:
    """What there is of a stream behind number `after`."""
    read = partial(events.after, stream=stream, limit=MAX_PAGE, most_bytes=BATCH_BYTES)
    with contextlib.suppress(StopAsyncIteration):
        while page := await ledger.read(partial(read, seq=after)):
            yield page
            after = page[-1].seq
