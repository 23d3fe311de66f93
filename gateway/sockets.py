"""Passes a WebSocket to a host and back, message by message: text stays text, bytes stay bytes.

The next read waits for the last send, both ways. How one side closes is told to the other; a side that is gone without
a word ends the other at once. A host that dies is never a proper end: the client is told 1011.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import CloseCode
from websockets.typing import Subprotocol

from contract.errors import BadField, NotMine
from gateway.client_body import Receive
from gateway.errors import HostBroken, HostSlow, HostUnreachable, refuses_tickets
from gateway.headers import TICKET_NAME, Pairs, answer_headers, asked_headers
from gateway.proxy import NOT_MINE, UNAUTHORIZED
from gateway.upstream import Upstream
from gateway.upstream.parts import TARGET
from gateway.upstream.sockets import open_socket

Send = Callable[[Any], Awaitable[None]]

MAX_MESSAGE_BYTES = 16 << 20  # as from clients
MESSAGES_WAITING = 2  # from a host for a client that does not read
WRITE_HIGH_WATER = 256 << 10
ANSWER_S = 30.0  # for the host to take the connection: a sandbox may have to be resumed first
PING_S = 20.0  # a host that says nothing for as long behind a ping is gone
CLOSE_S = 1.0  # for the other side's farewell
CONNECTED = "warren.connected"  # in a scope: the client's first message was taken

NO_CODE = 1005
SENDABLE = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})
MAX_REASON_BYTES = 123


async def forward_socket(  # noqa: PLR0917  # what ASGI hands on, and where it goes
    scope: Any,
    receive: Receive,
    send: Send,
    upstream: Upstream,
    target: str,
    ticket: str,
    *,
    request_id: str,
    subprotocols: Sequence[str] = (),
    extra_headers: Sequence[tuple[bytes, bytes]] = (),
    headers: Sequence[tuple[bytes, bytes]] | None = None,
    keep_credentials: bool = False,
) -> None:
    """Pass a WebSocket on until one side ends it. A host that refuses it is a refusal with the same status.

    Raises only before the client was told anything: `HostUnreachable`, `HostSlow`, `HostBroken`, what is wrong with the
    request, and `NotMine`: then the same scope may be forwarded to another host.
    """
    if not scope.pop(CONNECTED, False) and (await receive())["type"] != "websocket.connect":
        return
    asked = asked_headers(scope, scope["headers"] if headers is None else headers, keep_credentials=keep_credentials)
    passed = [pair for pair in asked.headers if not pair[0].startswith(b"sec-websocket-")]
    passed += [(b"x-request-id", request_id.encode()), *extra_headers]
    if ticket:
        passed.append((TICKET_NAME, ticket.encode()))
    try:
        host = await _open(upstream, target, passed, subprotocols)
    except InvalidStatus as refusal:
        if ticket and refusal.response.status_code == UNAUTHORIZED:
            raise refuses_tickets(upstream.address) from None
        await _refused(scope, send, refusal, request_id)
        return
    try:
        chosen = {"subprotocol": host.subprotocol} if host.subprotocol else {}
        await send({"type": "websocket.accept", "headers": [(b"x-request-id", request_id.encode())], **chosen})
        await _carry(receive, send, host)
    finally:
        host.transport.abort()  # after a farewell there is nothing left to abort


async def refuse_socket(send: Send, status: int, headers: Pairs, body: bytes) -> None:
    """Answer a WebSocket that was not accepted with an HTTP reply."""
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


async def _refused(scope: Any, send: Send, refusal: InvalidStatus, request_id: str) -> None:
    reply = refusal.response
    told = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.raw_items()]
    if reply.status_code == 404 and any(name == NOT_MINE for name, _ in told):
        scope[CONNECTED] = True
        raise NotMine("this host has never had the sandbox")
    if reply.status_code < 400:
        raise HostBroken(f"the host answered a WebSocket with {reply.status_code}")
    kept = [pair for pair in answer_headers(told) if not pair[0].startswith(b"sec-websocket-")]
    kept.append((b"x-request-id", request_id.encode()))
    await refuse_socket(send, reply.status_code, kept, bytes(reply.body or b""))


async def _open(upstream: Upstream, target: str, headers: Pairs, subprotocols: Sequence[str]) -> ClientConnection:
    """A WebSocket to the host, or `InvalidStatus` with its refusal."""
    if not TARGET.fullmatch(target):
        raise BadField("path", target, "has characters that must be percent-encoded")
    try:
        return await open_socket(
            upstream.dialler,
            target,
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
            additional_headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers],
            open_timeout=ANSWER_S,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            close_timeout=CLOSE_S,
            max_size=MAX_MESSAGE_BYTES,
            max_queue=MESSAGES_WAITING,
            write_limit=WRITE_HIGH_WATER,
        )
    except InvalidStatus:
        raise
    except InvalidURI as error:
        raise BadField("path", target, f"is no address of a WebSocket: {error}") from None
    except InvalidHandshake as error:
        raise HostBroken(f"{upstream.address} does not speak WebSocket: {error}") from error
    except TimeoutError:
        raise HostSlow(f"{upstream.address} did not take a WebSocket within {ANSWER_S:g} s") from None
    except (OSError, EOFError) as error:
        raise HostUnreachable(f"{upstream.address} did not take a WebSocket: {error}") from error


async def _carry(receive: Receive, send: Send, host: ClientConnection) -> None:
    """Both directions, until one of them ends; then the other side is told how."""
    up = asyncio.create_task(_up(receive, host))
    down = asyncio.create_task(_down(send, host))
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Before the farewell: who is still asked for a message may not take it.
        for task in (up, down):
            task.cancel()
        await asyncio.wait((up, down))
    if not down.cancelled():
        await send({"type": "websocket.close", **down.result()})
    else:
        await host.close(*_told(*up.result()))


async def _up(receive: Receive, host: ClientConnection) -> tuple[int, str]:
    """From the client to the host. Returns how the client left."""
    while (message := await receive())["type"] == "websocket.receive":
        text = message.get("text")
        try:
            await host.send(message["bytes"] if text is None else text)
        except ConnectionClosed:
            break  # the other direction knows why
    else:
        return message.get("code", NO_CODE), message.get("reason") or ""
    return await asyncio.Future()  # until we are cancelled


async def _down(send: Send, host: ClientConnection) -> dict[str, Any]:
    """From the host to the client. Returns how the host ended it, as the client is told."""
    try:
        while True:
            message = await host.recv()
            kind = "text" if isinstance(message, str) else "bytes"
            await send({"type": "websocket.send", kind: message})
    except ConnectionClosed as closed:
        return _ended(closed)


def _ended(closed: ConnectionClosed) -> dict[str, Any]:
    """A host that said how it ends is passed on; whatever else ended the connection is a fault."""
    said = closed.rcvd
    if said is None or (closed.sent is not None and not closed.rcvd_then_sent):
        ours = closed.sent
        if ours is not None and ours.code == CloseCode.MESSAGE_TOO_BIG:
            return {"code": 1009, "reason": f"a message has more than {MAX_MESSAGE_BYTES} bytes, or too many pieces"}
        return {"code": 1011, "reason": "the host broke off"}
    if said.code == NO_CODE:
        return {"code": 1000, "reason": ""}
    return {"code": said.code, "reason": said.reason}


def _told(code: int, reason: str) -> tuple[int, str]:
    """How the host is told that the client left: as the client said, where it said so."""
    if code in SENDABLE or 3000 <= code < 5000:
        return code, reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
    return 1001, "the client is gone"
