"""The short way to a host and back, without a task, for what is asked most: a request without a body, to a host that is
known, lives and has a connection open, whose answer comes at once and whole.

Whatever is not so goes the long way (`App`): from the beginning, or from where the short way ended.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from gateway.auth import Caller
from gateway.headers import TICKET_NAME, answer_headers
from gateway.heads import Head, Heads, Way
from gateway.proxy import CLIENT_LEFT, UNAUTHORIZED
from gateway.services import CALL, Call, Services
from gateway.upstream import Begun, Connection, Upstream
from gateway.upstream.parts import header_block

log = logging.getLogger("gateway")

LONG = frozenset({404, UNAUTHORIZED})  # of a host that never had the sandbox, perhaps, or that refuses our ticket
MAX_ADDRESSES = 8  # for which one request is remembered

Count = Callable[[Any, Call, int], None]
NewId = Callable[[], str]


class Exchange(Protocol):
    """A request and its reply, as the server has them."""

    scope: dict[str, Any]
    memo: dict[str, Any] | None  # of a request that came before

    @property
    def address(self) -> str: ...

    def own_scope(self) -> dict[str, Any]: ...

    @property
    def is_lost(self) -> bool:
        """The client is gone."""

    def reply(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None: ...

    def answer(self, **more: Any) -> "asyncio.Task[None]":
        """Let the application answer, in a task, with `more` in the scope."""

    def drop(self) -> None: ...


class Shortcut:
    """Of one gateway."""

    def __init__(self, services: Services, heads: Heads, new_id: NewId, count: Count, *, is_logged: bool) -> None:
        self.services = services
        self.count = count
        self.is_logged = is_logged  # each request has a line in the log
        self._heads = heads
        self._new_id = new_id

    def take(self, exchange: Exchange) -> bool:
        """Whether the request goes this way. If not, nothing has become of it."""
        memo, address = exchange.memo, exchange.address
        head: Head | None = None if memo is None else memo.get(address)
        if head is None:
            head = self._heads.get(exchange.own_scope())
            if memo is not None and len(memo) < MAX_ADDRESSES:
                memo[address] = head
        if head.way is None or not head.way.is_short or head.sandbox is None:
            return False
        services = self.services
        host = services.hosts.place_of(head.sandbox)
        upstream = None if host is None else services.hosts.alive_upstream(host)
        if host is None or upstream is None or not upstream.has_open:
            return False
        caller = services.auth.known(head.secret)
        if caller is None or head.way.scope not in caller.key.scopes:
            return False
        passing = _Passing(self, exchange, head, caller, host, upstream)
        return passing.is_begun(head.way, head.request_id or self._new_id())


class _Passing:
    """One request on its way. Known to `Later`: if there is no answer after a moment, it goes the long way."""

    __slots__ = (
        "_began_s", "_caller", "_connection", "_exchange", "_head", "_host", "_request_id", "_shortcut", "_upstream",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917  # what is asked, by whom, and of whom
        self, shortcut: Shortcut, exchange: Exchange, head: Head, caller: Caller, host: str, upstream: Upstream
    ) -> None:
        self._shortcut = shortcut
        self._exchange = exchange
        self._head = head
        self._caller = caller
        self._host = host
        self._upstream = upstream
        self._request_id = b""
        self._connection: Connection | None = None
        self._began_s = time.perf_counter()

    def is_begun(self, way: Way, request_id: str) -> bool:
        """Whether the host was asked."""
        services = self._shortcut.services
        ticket = services.tickets.get(self._host, self._caller.key.owner, way.passed.access, self._head.sandbox)
        self._request_id = request_id.encode()
        upstream, known, head = way.begun
        if upstream is not self._upstream or known is not ticket:
            head = self._upstream.head_of("GET", way.target, _block(way, ticket))
            way.begun = (self._upstream, ticket, head)
        # The id cannot have a line break in it: we have looked at it.
        whole = b"%bx-request-id: %b\r\n\r\n" % (head, self._request_id)
        self._connection = self._upstream.ask_nowait("GET", whole, self._news)
        if self._connection is None:
            return False
        services.metrics.open_requests += 1
        self._upstream.later.add(self)
        return True

    def begin(self) -> None:
        """A moment has passed without an answer."""
        if self._connection is not None:
            self._connection.told = None
            self._go_long(self._connection)

    def _news(self) -> None:
        """Something came from the host, or it hung up."""
        connection = self._connection
        if connection is None:
            return
        self._upstream.later.discard(self)
        if connection.complete and connection.status not in LONG:
            self._reply(connection)
        else:
            self._go_long(connection)

    def _reply(self, connection: Connection) -> None:
        exchange, services = self._exchange, self._shortcut.services
        status = CLIENT_LEFT if exchange.is_lost else connection.status
        headers = answer_headers(connection.headers)
        headers.append((b"x-request-id", self._request_id))
        headers += self._caller.headers
        body = connection.whole_nowait() or b""
        self._upstream.give_back(connection)
        try:
            exchange.reply(connection.status, headers, body)
        except Exception:
            log.exception("an answer could not be passed on")
            status = 0
            exchange.drop()
        services.metrics.open_requests -= 1
        services.hosts.answered(self._host)
        if self._shortcut.is_logged:
            self._shortcut.count(exchange.scope, self._call(), status)
        else:
            services.metrics.count(self._head.operation, status, time.perf_counter() - self._began_s)

    def _go_long(self, connection: Connection) -> None:
        self._connection = None
        call = self._call()
        call.services.metrics.open_requests -= 1
        call.begun = begun = Begun(self._host, self._upstream, connection)
        # However the task ends, and if it is cancelled before its first step, nobody else knows of the connection.
        self._exchange.answer(**{CALL: call}).add_done_callback(lambda _: begun.close())

    def _call(self) -> Call:
        head, request_id = self._head, self._request_id
        extra = [(b"x-request-id", request_id), *self._caller.headers]
        call = Call(
            self._shortcut.services, request_id.decode(), head.address, head.secret, extra, head.operation, head.sandbox
        )
        call.caller, call.began_s = self._caller, self._began_s
        return call


def _block(way: Way, ticket: str) -> bytes:
    passed = b"" if way.asked is None else way.asked.block
    return passed + header_block([(TICKET_NAME, ticket.encode())])
