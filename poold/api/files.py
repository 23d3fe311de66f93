"""Files of a sandbox, streamed both ways with bounded memory, whatever their size."""

import contextlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import Response

from contract.errors import BadField
from contract.models import file_path, user_name
from poold.api.audited import StreamedReply, Use, using

PASSED_ON = ("content-length", "content-range", "accept-ranges")
MAX_ENTRY_BYTES = 1 << 16


async def download(request: Request) -> Response:
    """The file's bytes; `Range` asks for a part of them."""
    query = _query(request)
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
    query = _query(request)
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


def _query(request: Request) -> dict[str, str]:
    """The checked query of a file request, for the guest."""
    asked = _asked(request)
    query = {"path": file_path(asked.get("path", ""))}
    if (user := user_name(asked.get("user"))) is not None:
        query["user"] = user
    mode = asked.get("mode")
    if mode is not None:
        if not mode.isdigit() or len(mode) > 4 or set(mode) - set("01234567"):
            raise BadField("mode", mode, "must be octal, like 0644")
        query["mode"] = mode
    return query


def _asked(request: Request) -> dict[str, str]:
    """The query as it was sent. What is not UTF-8 is refused: with replaced bytes it would name another file."""
    raw: bytes = request.scope["query_string"]
    try:
        return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise BadField("path", raw, "must be UTF-8, percent-encoded") from None
