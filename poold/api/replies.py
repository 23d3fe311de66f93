"""Requests in, replies out: bounded bodies, JSON, and the one place where errors become HTTP."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response

from contract.errors import CapacityError, NotMine, TooLarge, WarrenError
from poold.errors import GuestRefused

log = logging.getLogger("poold.api")

MAX_JSON_BYTES = 1 << 20
READ_ON_BYTES = 64 << 20  # of a request that is refused, so that the refusal arrives
READ_ON_S = 5.0

Handler = Callable[[Request], Awaitable[Response]]

# Starlette's own refusals, in our shape.
CODES = {404: "no_such_route", 405: "method_not_allowed"}


async def read_body(request: Request, limit: int = MAX_JSON_BYTES) -> bytes:
    """The request's JSON body. One that is too long is refused before it is read to its end."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise TooLarge(f"the body must have at most {limit} bytes", limit=limit)
    return bytes(body)


def json_reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, media_type="application/json")


def error_reply(error: WarrenError) -> Response:
    headers: dict[str, str] = {}
    if isinstance(error, CapacityError):
        headers["Retry-After"] = str(error.retry_after_s)
    elif isinstance(error, NotMine):
        headers["Warren-Not-Mine"] = "1"  # a gateway need not read the body to ask the next host
    return json_reply(error.body(), error.status, headers)


async def on_warren_error(request: HTTPConnection, error: Exception) -> Response:
    assert isinstance(error, WarrenError)  # noqa: S101 — it is registered for nothing else
    await _read_on(request)
    if error.status >= 500 and not isinstance(error, CapacityError | GuestRefused):
        log.error("request failed", extra={"code": error.code, "why": error.message})
    return error_reply(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 — it is registered for nothing else
    await _read_on(request)
    code = CODES.get(error.status_code, "bad_request")
    return json_reply({"error": {"code": code, "message": error.detail}}, error.status_code, dict(error.headers or {}))


async def on_departure(_request: Request, _error: Exception) -> Response:
    """The client left before its request was whole. Nobody reads this."""
    return Response(status_code=499)


async def on_bug(_request: Request, error: Exception) -> Response:
    """Nobody foresaw this. The caller learns nothing of our insides; the log has the traceback."""
    if isinstance(error.__cause__, WarrenError):  # foreseen, but the reply was under way: Starlette breaks it off
        log.warning("a reply was cut short", extra={"code": error.__cause__.code, "why": error.__cause__.message})
    else:
        log.error("unforeseen error in a request", exc_info=error)
    return json_reply({"error": {"code": "internal", "message": "an internal error; the host's log has more"}}, 500)


async def _read_on(request: HTTPConnection) -> None:
    """Drop the rest of the request: most clients look for a reply only once they have sent everything."""
    if not isinstance(request, Request):
        return  # a WebSocket that is not opened: there is no rest
    read = 0
    with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):  # RuntimeError: it was read to its end
        async with asyncio.timeout(READ_ON_S):
            async for chunk in request.stream():
                read += len(chunk)
                if read > READ_ON_BYTES:
                    return


EXCEPTION_HANDLERS: dict[Any, Any] = {
    WarrenError: on_warren_error,
    HTTPException: on_http_exception,
    ClientDisconnect: on_departure,
    Exception: on_bug,
}
