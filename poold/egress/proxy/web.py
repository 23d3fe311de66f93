"""Plain HTTP: every request is read, decided, and written anew; answers are followed to their end.

A guest's connection may carry many requests, one after the other, each for another host. The connection to a server
is used again only for the same name and port.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from poold.egress.addresses import Address
from poold.egress.policy import Allowed, Asked, Target, decide
from poold.egress.proxy.chunks import BadChunk, Chunks
from poold.egress.proxy.ends import End, Gone
from poold.egress.proxy.heads import (
    MAX_HEAD_BYTES,
    UNREADABLE,
    Answer,
    Authority,
    BadHead,
    Request,
    read_answer,
    read_request,
)
from poold.egress.proxy.refusals import Refusal
from poold.egress.proxy.visits import HEAD_S, Face, Meant, Visit, read_host

PIECE_BYTES = 256 * 1024
MAX_INTERIM = 32
_TLS_PORT = 443
_REPEATABLE = ("GET", "HEAD", "OPTIONS")


async def read_head(client: End, *, is_first: bool) -> Request | None:
    """The next request's head, taken off the connection. None: there is none. Raises `Refusal`."""
    if not is_first and not client.data and not await client.more():  # how long is for the idle time to say
        return None
    try:
        async with asyncio.timeout(HEAD_S):
            looked = 0  # at so many bytes: they may come one by one
            while (end := client.data.find(b"\r\n\r\n", looked)) < 0:
                if len(client.data) > MAX_HEAD_BYTES or client.data.find(b"\n\n", looked) >= 0:
                    raise Refusal("bad_request", "the head of the request does not end in an empty line")
                looked = max(0, len(client.data) - 3)
                if not await client.more():
                    if not client.data:
                        return None
                    raise Refusal("bad_request", "the head of the request is not whole")
    except TimeoutError:
        raise Refusal("idle", "the head of the request took too long") from None
    if end > MAX_HEAD_BYTES:
        raise Refusal("bad_request", "the head of the request is too long")
    try:
        return read_request(client.take(end + 4))
    except BadHead as error:
        raise Refusal(error.why, str(error)) from None


class Conversation:
    """Requests on one visit. `meant`: where the connection as such goes; None: every request says it itself."""

    def __init__(self, visit: Visit, meant: Meant | None) -> None:
        self._visit = visit
        self._meant = meant
        self._is_fixed = visit.upstream is not None and meant is not None and meant.name is None
        self._has_answered = False  # something of an answer has been sent to the guest

    async def run(self, first: Request | None = None) -> None:
        """Carry requests until somebody has had enough. `first` has been read already."""
        self._visit.face = Face.HTTP
        try:
            request = first or await read_head(self._visit.client, is_first=True)
            while request is not None and await self._exchange(request):
                self._forget()
                request = await read_head(self._visit.client, is_first=False)
            self._visit.leave()
            await self._visit.client.leave(b"")
        except Refusal as refusal:
            await self._refuse(refusal)

    def _forget(self) -> None:
        """The last request is over: what is refused now is another one, and the guest can be told."""
        self._has_answered = False
        if self._meant is None:
            self._visit.said = (None, None, None)
        else:
            self._visit.mean(self._meant)

    async def _refuse(self, refusal: Refusal) -> None:
        """What went before on this connection was allowed, and is written down as that."""
        self._visit.leave()
        if self._has_answered:
            self._visit.write_down(refusal)
            self._visit.client.abort()
        else:
            await self._visit.refuse(refusal)

    async def _exchange(self, request: Request) -> bool:
        """One request and its answer. True: another one may follow."""
        host, target = self._decide_where(request)
        is_reused = await self._reach(target)
        try:
            return await self._send_and_relay(request, host)
        except _NoAnswer:
            if not is_reused or request.has_body or request.method not in _REPEATABLE:
                raise Refusal("connect_failed", f"{target} closed the connection without an answer") from None
        # A server may close a connection that was kept just when it is used again.
        await self._visit.reach(target)
        try:
            return await self._send_and_relay(request, host)
        except _NoAnswer:
            raise Refusal("connect_failed", f"{target} closed the connection without an answer") from None

    # Where to

    def _decide_where(self, request: Request) -> tuple[str, Target]:
        """What the Host header will say, and what is to be reached. Raises `Refusal`."""
        if request.method == "CONNECT":
            raise Refusal("bad_request", "CONNECT is for the first request of a connection to the proxy")
        authority = request.authority
        if authority is None and self._meant is None:
            raise Refusal("bad_request", "a proxy needs the whole address in the request (http://…)")
        said = authority or request.host
        if said is not None:
            self._visit.said = (said.host, None, said.port or (self._meant.port if self._meant else 80))
        if authority is not None and request.host is not None:
            self._check_same(authority, request.host)
        port = self._port(said)
        if port == _TLS_PORT:
            raise Refusal("not_tls", f"port {port} is for TLS, and this is plain HTTP")
        name, address = (None, None) if said is None else read_host(said.host)
        self._visit.said = (name, address, port)
        target = self._target(name, address, port, Asked(request.method, request.path, request.has_override))
        shown = said.host.lower() if said is not None and name is None else name or target.name or str(target.address)
        return (shown if port == 80 else f"{shown}:{port}"), target

    def _check_same(self, one: Authority, other: Authority) -> None:
        if read_host(one.host) != read_host(other.host) or (one.port or 80) != (other.port or 80):
            self._visit.said = (*read_host(other.host), other.port or 80)
            raise Refusal("host_mismatch", f"the request is for {one.host}, and its Host header says {other.host}")

    def _port(self, said: Authority | None) -> int:
        if self._meant is None:
            return 80 if said is None or said.port is None else said.port
        if said is not None and said.port not in (None, self._meant.port):
            raise Refusal("host_mismatch", f"the connection is to port {self._meant.port}, and not to {said.port}")
        return self._meant.port

    def _target(self, name: str | None, address: Address | None, port: int, asked: Asked) -> Target:
        meant = self._meant
        if meant is None:
            return Target(port, name, address, asked)
        if meant.name is not None:
            if (name, address) not in ((meant.name, None), (None, None)):
                raise Refusal("host_mismatch", f"the connection is to {meant.name}, and not to {name or address}")
            return Target(port, meant.name, None, asked)
        if meant.address is None:
            if name is None:
                raise Refusal("no_destination", "the request does not say which host it is for")
            return Target(port, name, None, asked)
        if address not in (None, meant.address):
            raise Refusal("host_mismatch", f"the connection is to {meant.address}, and not to {address}")
        return self._name_or_address(Target(port, name, None, asked), Target(port, None, meant.address, asked))

    def _name_or_address(self, by_name: Target, by_address: Target) -> Target:
        """The address counts if the name is not allowed, and the address itself is."""
        if by_name.name is None or self._is_fixed:
            return by_address
        if isinstance(decide(self._visit.gate.policy, by_name), Allowed):
            return by_name
        return by_address if isinstance(decide(self._visit.gate.policy, by_address), Allowed) else by_name

    async def _reach(self, target: Target) -> bool:
        """Have a connection to `target`. True: it has been used before. Raises `Refusal`."""
        visit, flow = self._visit, self._visit.flow
        if flow is not None and (flow.target.name, flow.target.address, flow.target.port) == (
            target.name,
            target.address,
            target.port,
        ):
            rule = await visit.gate.allow(visit, target)
            if visit.upstream is not None and not visit.upstream.has_ended and not visit.upstream.is_lost:
                flow.target, flow.rule = target, rule
                flow.check_again()
                return True
        await visit.reach(target)
        return False

    # There and back

    async def _send_and_relay(self, request: Request, host: str) -> bool:
        client, upstream = self._visit.client, self._visit.upstream
        if upstream is None:
            raise Gone
        await self._up(upstream, request.written(host))
        async with self._sending(request, upstream) as body:
            keeps = await self._relay(request, upstream)
        if client.is_lost or (body is not None and (body.cancelled() or body.exception() is not None)):
            return False  # the server did not want all of the body: nobody knows where the next request begins
        return keeps and request.keeps

    @contextlib.asynccontextmanager
    async def _sending(self, request: Request, upstream: End) -> AsyncIterator["asyncio.Task[None] | None"]:
        """The body goes to the server during the block. Raises the `Refusal` that it met, if the block fails by it."""
        if not request.has_body:
            yield None
            return
        body = asyncio.create_task(self._send_body(request, upstream))
        try:
            yield body
        except (Gone, _NoAnswer):
            if body.done() and not body.cancelled() and isinstance(error := body.exception(), Refusal):
                raise error from None
            raise
        finally:
            body.cancel()
            await asyncio.wait((body,))

    async def _send_body(self, request: Request, upstream: End) -> None:
        try:
            if request.is_chunked:
                await self._send_chunks(upstream)
            else:
                await self._send_counted(upstream, request.length)
        except BaseException:
            upstream.abort()  # half a request is none
            raise

    async def _send_counted(self, upstream: End, left: int) -> None:
        client = self._visit.client
        while left:
            if not client.data and not await client.more():
                raise Gone
            piece = client.take(min(left, PIECE_BYTES))
            left -= len(piece)
            await self._up(upstream, piece)

    async def _send_chunks(self, upstream: End) -> None:
        client, chunks = self._visit.client, Chunks()
        while not chunks.is_done:
            if not client.data and not await client.more():
                raise Gone
            data = client.take(PIECE_BYTES)
            try:
                pieces, used = chunks.feed(data)
            except BadChunk as error:
                raise Refusal("bad_request", str(error)) from None
            client.data[:0] = data[used:]
            # All at once: a guest may send thousands of chunks of one byte, and each write is a packet.
            await self._up(upstream, b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces))
        await self._up(upstream, b"0\r\n\r\n")

    async def _relay(self, request: Request, upstream: End) -> bool:
        """Bring the answer to the guest. True: the server takes another request."""
        for _ in range(MAX_INTERIM):
            answer, head = await self._read_answer(request, upstream)
            await self._down(head)
            if answer.status == 101:
                if not request.wants_websocket:
                    raise Gone
                await self._visit.pour_both()
                return False
            if not answer.is_interim:
                break
        else:
            raise Gone
        if answer.is_chunked:
            return await self._relay_chunks(upstream) and answer.keeps
        if answer.is_until_close:
            await self._relay_rest(upstream)
            return False
        await self._relay_counted(upstream, answer.length or 0)
        return answer.keeps and not upstream.data

    async def _read_answer(self, request: Request, upstream: End) -> tuple[Answer, bytes]:
        """How long the answer is, and its head. What cannot be read has no head, and is relayed as it comes."""
        try:
            looked = 0
            while (end := upstream.data.find(b"\r\n\r\n", looked)) < 0:
                if len(upstream.data) > MAX_HEAD_BYTES:
                    return UNREADABLE, b""
                looked = max(0, len(upstream.data) - 3)
                if not await upstream.more():
                    if upstream.data:
                        return UNREADABLE, b""
                    raise _NoAnswer
        except Gone:
            raise _NoAnswer from None
        head = upstream.take(end + 4)
        return read_answer(head, request.method), head

    async def _relay_counted(self, upstream: End, left: int) -> None:
        while left:
            if not upstream.data and not await upstream.more():
                raise Gone
            piece = upstream.take(min(left, PIECE_BYTES))
            left -= len(piece)
            await self._down(piece)

    async def _relay_chunks(self, upstream: End) -> bool:
        """True: it was clear to the end where it ends."""
        chunks = Chunks()
        while not chunks.is_done:
            if not upstream.data and not await upstream.more():
                raise Gone
            data = upstream.take(PIECE_BYTES)
            try:
                _, used = chunks.feed(data)
            except BadChunk:
                await self._down(data)
                await self._relay_rest(upstream)
                return False
            upstream.data[:0] = data[used:]
            await self._down(data[:used])
        return not upstream.data

    async def _relay_rest(self, upstream: End) -> None:
        while upstream.data or await upstream.more():
            await self._down(upstream.take(PIECE_BYTES))

    async def _up(self, upstream: End, data: bytes) -> None:
        if self._visit.flow is None:
            raise Gone
        self._visit.flow.add_up(len(data))
        await upstream.send(data)

    async def _down(self, data: bytes) -> None:
        if self._visit.flow is None:
            raise Gone
        if data:
            self._has_answered = True
            self._visit.flow.add_down(len(data))
            await self._visit.client.send(data)


class _NoAnswer(Exception):
    """The server left before it said anything."""
