"""Requests in, replies out: bounded bodies, JSON, and the one place where errors become HTTP."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from contract.errors import CallerError, CapacityError, TooLarge, WarrenError
from gateway.auth import TooFast
from gateway.errors import BadBody, SlowBody

log = logging.getLogger("gateway")

MAX_JSON_BYTES = 1 << 20
BODY_S = 30.0  # for the whole of a JSON body
READ_ON_BYTES = 4 << 20  # of a request that is refused, so that the refusal arrives
READ_ON_S = 2.0
SOCKET_REFUSED = 4000  # and the HTTP status: the code of a close in place of a refusal

Pairs = list[tuple[bytes, bytes]]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class NoSuchRoute(CallerError):
    status = 404
    code = "no_such_route"


class WrongMethod(CallerError):
    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class Reply:
    """The way back to the client: gives each reply its headers, and remembers what was said."""

    __slots__ = ("_extra", "_send", "status")

    def __init__(self, send: Send, extra: Pairs) -> None:
        self._send = send
        self._extra = extra
        self.status = 0

    def __call__(self, message: Any) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            told = [*message.get("headers", ()), *self._extra]
            message = {"type": "http.response.start", "status": self.status, "headers": told}
        return self._send(message)


async def read_body(request: Request, most: int = MAX_JSON_BYTES) -> bytes:
    """The request's JSON body. One that is too long or too slow is refused before it is read to its end."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise TooLarge(f"the body must have at most {most} bytes", limit=most)
    except TimeoutError:
        raise SlowBody(f"the body did not come within {BODY_S:.0f} s") from None
    except ClientDisconnect:
        raise BadBody("the body broke off, or its chunks are not as HTTP says") from None
    return bytes(body)


def json_reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, media_type="application/json")


def error_of(error: BaseException) -> WarrenError:
    """`error` as one of ours. What nobody foresaw is logged; the caller learns nothing of our insides."""
    if isinstance(error, WarrenError):
        if error.status >= 500 and not isinstance(error, CapacityError):
            log.error("request failed", extra={"code": error.code, "why": error.message})
        return error
    log.error("unforeseen error in a request", exc_info=error)
    return WarrenError("an internal error; the gateway's log has more")


def error_headers(error: WarrenError) -> Pairs:
    headers: Pairs = [(b"content-type", b"application/json")]
    if isinstance(error, CapacityError):
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    elif isinstance(error.details.get("retry_after_s"), int):
        headers.append((b"retry-after", b"%d" % error.details["retry_after_s"]))
    if isinstance(error, WrongMethod):
        headers.append((b"allow", error.allowed.encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, TooFast):
        headers += error.headers
    return headers


class Heard:
    """What the client sends, and whether that was all: after it nothing comes but its leaving."""

    __slots__ = ("_receive", "is_whole")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_whole = False

    async def __call__(self) -> Any:
        message = await self._receive()
        if not message.get("more_body"):
            self.is_whole = True
        return message


async def refuse(heard: Heard, reply: Reply, error: WarrenError) -> None:
    """Answer with the error. The rest of the request is dropped first: many clients send all before they read."""
    if not heard.is_whole and not isinstance(error, TooLarge):
        await _read_on(heard)
    body = orjson.dumps(error.body())
    headers = [*error_headers(error), (b"content-length", b"%d" % len(body))]
    await reply({"type": "http.response.start", "status": error.status, "headers": headers})
    await reply({"type": "http.response.body", "body": body})


async def _read_on(receive: Receive) -> None:
    read = 0
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(READ_ON_S):
            while read < READ_ON_BYTES:
                message = await receive()
                read += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return


async def refuse_socket(scope: Any, send: Send, error: WarrenError) -> None:
    """Refuse a WebSocket that was not accepted: with the error as an HTTP reply, where the server can do that."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": SOCKET_REFUSED + error.status, "reason": error.code})
        return
    body = orjson.dumps(error.body())
    headers = [*error_headers(error), (b"content-length", b"%d" % len(body))]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
