"""Passes a request to a host and its answer back, in plain ASGI. The gateway does not read what it carries.

The next read waits for the last send, both ways. Whoever leaves ends both. If the host breaks off, so do we: a reply
whose last message is missing is cut by the server, for HTTP/1.1 (chunked, or with a length) as for HTTP/2.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from contract.errors import NotMine, WarrenError
from gateway.client_body import KEPT, ClientBody, Receive, has_none, read_body
from gateway.errors import HostSlow, HostUnreachable, refuses_tickets
from gateway.headers import TICKET_NAME, Asked, Pairs, answer_headers, asked_headers
from gateway.upstream import Answer, Begun, Upstream
from gateway.watch import Watch

log = logging.getLogger("gateway")

Send = Callable[[Any], Awaitable[None]]
Mend = Callable[[int, Pairs], Pairs]

ANSWER_S = 300.0  # for the head of an answer; commands answer when they have ended
CLIENT_LEFT = 499  # told to nobody but the log
UNAUTHORIZED = 401  # a host says so of nothing but our tickets
NOT_MINE = b"warren-not-mine"
LAST = {"type": "http.response.body", "body": b"", "more_body": False}


async def forward(  # noqa: PLR0917  # what ASGI hands on, and where it goes
    scope: Any,
    receive: Receive,
    send: Send,
    upstream: Upstream,
    target: str,
    ticket: str,
    request_id: str,
    *,
    asked: Asked | None = None,
    extra_headers: Sequence[tuple[bytes, bytes]] = (),
    mend: Mend | None = None,
    begun: Begun | None = None,
    answer_s: float = ANSWER_S,
) -> int:
    """Pass the request on, and the answer back. Returns its status, or 499 if the client left before there was one.

    Raises only before anything was sent to the client: what `Upstream` raises, `HostSlow`, `HostUnreachable` also for a
    host that refuses our ticket, what is wrong with the request itself, and `NotMine` where the host has never had the
    sandbox: then the same scope may be forwarded to another host, which gets the whole body. An empty `ticket` sends
    none.

    `asked` stands for what of the client's own headers would pass, `extra_headers` are added, and `mend` changes the
    headers of the answer. `begun`: the host was asked already.
    """
    asked = asked or asked_headers(scope, scope["headers"])
    body = None if has_none(scope, asked.length, asked.is_coded) else await read_body(scope, receive, asked.length)
    pieces = body if isinstance(body, ClientBody) else None
    passed = [(b"x-request-id", request_id.encode()), *extra_headers]
    passed += _said(ticket, None if pieces is None else asked.length)
    exchange = upstream.stream(
        scope["method"], target, passed, body, waits=bool(ticket), block=asked.block, asked=begun
    )
    watch = Watch(upstream.later, receive, pieces, answer_s)
    async with watch, exchange as answer:
        watch.answered()
        status = answer.status
        if status == 404 and ticket:
            _raise_if_not_mine(scope, answer, body)
        if status == UNAUTHORIZED and ticket:
            raise refuses_tickets(upstream.address)
        told = answer_headers(answer.headers)
        if mend is not None:
            told = mend(status, told)
        await send({"type": "http.response.start", "status": status, "headers": told})
        if (whole := answer.whole_nowait()) is not None:
            await send({"type": "http.response.body", "body": whole, "more_body": False})
        else:
            await _pass_on(send, answer, request_id)
        return status
    if watch.is_late:
        raise HostSlow(f"{upstream.address} did not begin to answer within {answer_s:g} s")
    return CLIENT_LEFT


def _said(ticket: str, length: int | None) -> Pairs:
    """What we say of a request: our ticket, and how long a body is that comes in pieces."""
    said = [(TICKET_NAME, ticket.encode())] if ticket else []
    return said if length is None else [*said, (b"content-length", b"%d" % length)]


async def _pass_on(send: Send, answer: Answer, request_id: str) -> None:
    """The body of the answer, and its end if it has one."""
    try:
        async for chunk in answer.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send(LAST)
    except WarrenError as error:
        log.warning("request %s: cut in the middle of its answer: %s", request_id, error.message)


def _raise_if_not_mine(scope: Any, answer: Answer, body: bytes | ClientBody | None) -> None:
    if not any(name == NOT_MINE for name, _ in answer.headers):
        return
    if isinstance(body, ClientBody) and body.has_begun:
        raise HostUnreachable("the host began to read what it then said is not its own; try again")
    scope[KEPT] = body
    raise NotMine("this host has never had the sandbox")
