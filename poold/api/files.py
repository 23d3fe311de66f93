"""Files of a sandbox, streamed both ways with bounded memory, whatever their size."""

import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from contract.asked import FileAsked
from poold.api.audited import StreamedReply, Use, using
from poold.api.listing import read_query

PASSED_ON = ("content-length", "content-range", "accept-ranges")
MAX_ENTRY_BYTES = 1 << 16


async def download(request: Request) -> Response:
    """The file's bytes; `Range` asks for a part of them."""
    query = _query(read_query(request, FileAsked.read))
    asked = {"Range": request.headers["range"]} if "range" in request.headers else {}
    async with contextlib.AsyncExitStack() as stack:
        use = await stack.enter_async_context(using(request, "file.read", path=query["path"]))
        exchange = use.guest.exchange("GET", _target(query), headers=asked)
        answer = await stack.enter_async_context(exchange)
        rest = stack.pop_all()  # from here on the reply closes it
    headers = {name: answer.headers[name] for name in PASSED_ON if name in answer.headers}
    return StreamedReply(
        _counted(answer.chunks(), use),
        rest,
        status_code=answer.status,
        headers=headers,
        media_type="application/octet-stream",
    )


async def upload(request: Request) -> Response:
    """The body becomes the file. `Content-Range` writes only a part of it."""
    query = _query(read_query(request, FileAsked.read_upload))
    headers = {
        name.title(): request.headers[name] for name in ("content-length", "content-range") if name in request.headers
    }
    async with using(request, "file.write", path=query["path"]) as use:
        sent = _counted(request.stream(), use)
        async with use.guest.exchange("PUT", _target(query), headers=headers, body=sent) as answer:
            body = await answer.read(MAX_ENTRY_BYTES)
    return Response(body, answer.status, media_type="application/json")


async def _counted(chunks: AsyncIterator[bytes], use: Use) -> AsyncIterator[bytes]:
    use.bytes = 0
    async for chunk in chunks:
        use.bytes += len(chunk)
        yield chunk


def _target(query: dict[str, str]) -> str:
    return f"/files/content?{urlencode(query)}"


def _query(asked: FileAsked) -> dict[str, str]:
    """The query for the guest."""
    return {name: value for name, value in vars(asked).items() if value is not None}
