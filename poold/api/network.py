"""What a sandbox may reach, and what it reached."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from contract.asked import EgressAsked
from contract.fields import Fields
from contract.network import Network, Within
from contract.states import State
from poold.api.listing import read_query
from poold.api.replies import json_reply, read_body
from poold.api.services import Services, asked_id, caller_of, services
from poold.api.streams import after_of, alive, event_stream, sse, wants_stream
from poold.ledger import egress

ROW = "row"
BATCH = 256
OVER = (State.STOPPED, State.ERROR)


async def get(request: Request) -> Response:
    """The sandbox's own policy, and those that it never gets out of."""
    found = services(request)
    sandbox = await found.sandboxes.get(asked_id(request))
    within = (Within("host", found.sandboxes.network.view()), *sandbox.within)
    return json_reply({"network": sandbox.network.view(), "within": [each.view() for each in within]})


async def put(request: Request) -> Response:
    fields = Fields.parse(await read_body(request))
    network = Network.read(fields)
    fields.end()
    changed = await services(request).sandboxes.set_network(asked_id(request), network, caller_of(request))
    return json_reply(changed.view())


async def connections(request: Request) -> Response:
    """A page of connections and those that are open, or a stream that goes on until the sandbox has ended."""
    found, sandbox_id = services(request), asked_id(request)
    await found.sandboxes.get(sandbox_id)
    asked = read_query(request, EgressAsked.read)
    after = after_of(request, asked.after)
    if wants_stream(request):
        return event_stream(_stream(_following(found, sandbox_id, after, asked.verdict)))
    question = partial(egress.listed, sandbox_id=sandbox_id, after=after, limit=asked.limit, verdict=asked.verdict)
    rows = await found.ledger.read(question)
    return json_reply({"rows": rows, "open": [each.view() for each in found.sandboxes.connections(sandbox_id)]})


async def _stream(batches: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[bytes]:
    async for batch in alive(batches):
        yield b"".join(sse(ROW, row, row["seq"]) for row in batch) or b": ping\n\n"


async def _following(
    found: Services, sandbox_id: str, after: int, verdict: str | None
) -> AsyncIterator[list[dict[str, Any]]]:
    """What is written down, as it is, until nothing can come any more."""
    async with contextlib.aclosing(found.ledger.changes(egress.stream_of(sandbox_id), sandbox_id)) as changes:
        async for _ in changes:
            is_over = (await found.sandboxes.get(sandbox_id)).state in OVER
            if is_over:  # its last connections end with its machine
                await found.sandboxes.at_rest(sandbox_id)
            question = partial(egress.listed, sandbox_id=sandbox_id, limit=BATCH, verdict=verdict)
            while batch := await found.ledger.read(partial(question, after=after)):
                yield batch
                after = batch[-1]["seq"]
            if is_over:
                return
