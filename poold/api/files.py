"""Files of a sandbox, streamed both ways with bounded memory, whatever their size."""

import contextlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from contract.errors import BadField
from contract.models import file_path, user_name
from poold.api.sandboxes import guest_of
from poold.link import Answer

PASSED_ON = ("content-length", "content-range", "accept-ranges")
MAX_ENTRY_BYTES = 1 << 16


async def download(request: Request) -> Response:
    """The file's bytes; `Range` asks for a part of them."""
    target = f"/files/content?{_query(request)}"
    guest = await guest_of(request)
    asked = {"Range": request.headers["range"]} if "range" in request.headers else {}
    stack = contextlib.AsyncExitStack()
    async with stack:
        answer = await stack.enter_async_context(guest.exchange("GET", target, headers=asked))
        rest = stack.pop_all()  # from here on the reply's body closes it
    headers = {name: answer.headers[name] for name in PASSED_ON if name in answer.headers}
    return StreamingResponse(_body(answer, rest), answer.status, headers, media_type="application/octet-stream")


async def _body(answer: Answer, rest: contextlib.AsyncExitStack) -> AsyncIterator[bytes]:
    async with rest:
        async for chunk in answer.chunks():
            yield chunk


async def upload(request: Request) -> Response:
    """The body becomes the file. `Content-Range` writes only a part of it."""
    target = f"/files/content?{_query(request)}"
    guest = await guest_of(request)
    headers = {
        name.title(): request.headers[name] for name in ("content-length", "content-range") if name in request.headers
    }
    async with guest.exchange("PUT", target, headers=headers, body=request.stream()) as answer:
        body = await answer.read(MAX_ENTRY_BYTES)
    return Response(body, answer.status, media_type="application/json")


def _query(request: Request) -> str:
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
    return urlencode(query)


def _asked(request: Request) -> dict[str, str]:
    """The query as it was sent. What is not UTF-8 is refused: with replaced bytes it would name another file."""
    raw: bytes = request.scope["query_string"]
    try:
        return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise BadField("path", raw, "must be UTF-8, percent-encoded") from None
