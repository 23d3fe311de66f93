"""Who asks: on the port by a ticket, which is all that we believe there; on the unix socket it is the operator.

Every request has `ticket` in its state: the one that it came with, or None for the operator. Refused tickets are
written down, so many a second at most: a flood of them must not fill the disk.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from contract.errors import WarrenError
from contract.tickets import HEADER, Access, BadTicket, Ticket, Used, Verifier, public_pems
from poold.api.replies import on_warren_error
from poold.ledger import Ledger, audit
from poold.metrics import Metrics
from poold.watched import Watched

log = logging.getLogger("poold.api")

NO_KEYS = (
    "this host takes no tickets, so only /healthz is answered here: POOLD_PKI must name a folder with tickets.pub"
    " (pooldctl pki issue makes one)"
)
NOBODY = "unknown"  # the owner in an audit row, if the ticket does not say who
ROWS_A_SECOND = 20  # of refused tickets
SHOWN_PATH_CHARS = 200


class Tickets:
    """The tickets that this host believes: signed with a key in the file `keys`, which may change at any time."""

    def __init__(self, host: str, keys: Path | None, *, now_ms: Callable[[], int]) -> None:
        self._host = host
        self._keys = keys
        self._now_ms = now_ms
        self._watched = Watched([] if keys is None else [keys])
        self._used = Used(now_ms)
        self._verifier: Verifier | None = None
        self._load()
        if self._verifier is None:
            log.warning(NO_KEYS)

    def read(self, text: str | None) -> Ticket:
        """The ticket, or `BadTicket` with what is wrong with it."""
        self._load()
        if self._verifier is None:
            raise BadTicket(NO_KEYS)
        return self._verifier.verify(text)

    def use(self, ticket: Ticket) -> None:
        """It is good once: raises `BadTicket` the second time."""
        self._used.use(ticket)

    def _load(self) -> None:
        """Take the keys that the file has now. If there is something wrong with it, those that we have stay good."""
        if self._keys is None or not self._watched.has_changed():
            return
        try:
            pems = public_pems(self._keys.read_bytes())
            if not pems:
                raise ValueError("it has no public key in PEM")
            self._verifier = Verifier(self._host, pems, now_ms=self._now_ms)
        except (OSError, ValueError) as error:
            log.error("the keys for tickets cannot be read", extra={"path": str(self._keys), "why": str(error)})


class Refusals:
    """Refused tickets, each an audit row as long as they are few. All are counted."""

    def __init__(self, ledger: Ledger, metrics: Metrics, *, now_ms: Callable[[], int]) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._now_ms = now_ms
        self._left = float(ROWS_A_SECOND)
        self._at = time.monotonic()

    def note(self, scope: Scope, error: WarrenError, ticket: Ticket | None = None, *, why: str | None = None) -> None:
        """Write the refusal down, soon and if there is room. Never waits, and never fails.

        `why`: for the operator, where the one who asked is told less.
        """
        is_written = self._may_write()
        self._metrics.tickets_refused_total.add(audited="yes" if is_written else "no")
        if is_written:
            entry = audit.Entry(
                self._now_ms(),
                "ticket.refused",
                owner=NOBODY if ticket is None else ticket.owner or NOBODY,
                sandbox=None if ticket is None else ticket.sandbox,
                request=scope["state"].get("request"),
                detail={"code": error.code, "why": why or error.message, **_asked(scope)},
            )
            with contextlib.suppress(WarrenError):  # the ledger is closed: nobody is let in any more
                self._ledger.submit(partial(audit.add, entry=entry), durable=False)

    def _may_write(self) -> bool:
        now = time.monotonic()
        self._left = min(float(ROWS_A_SECOND), self._left + (now - self._at) * ROWS_A_SECOND)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class ByTicket:
    """Around every request at the port: its ticket is read first. Without a good one only `open_paths` are answered."""

    def __init__(self, app: ASGIApp, *, tickets: Tickets, refusals: Refusals, open_paths: Collection[str]) -> None:
        self._app = app
        self._tickets = tickets
        self._refusals = refusals
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        try:
            scope["state"]["ticket"] = self._ticket(scope)
        except BadTicket as error:
            self._refusals.note(scope, error)
            asked = Request(scope, receive) if scope["type"] == "http" else WebSocket(scope, receive, send)
            reply = await on_warren_error(asked, error)
            await reply(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _ticket(self, scope: Scope) -> Ticket:
        text = _header(scope)
        if text is None and scope["type"] == "websocket" and (text := _in_query(scope)) is not None:
            # A query is in histories and logs: only what is good once may be there.
            ticket = self._tickets.read(text)
            if ticket.access is not Access.ATTACH:
                raise BadTicket(f"only a ticket to attach may be in the query; others go into the header {HEADER}")
            return ticket
        return self._tickets.read(text)


class ByOperator:
    """Around every request at the unix socket, which only the operator can open: no ticket is needed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["ticket"] = None
        await self._app(scope, receive, send)


def ticket_of(connection: HTTPConnection) -> Ticket | None:
    """The ticket of a request; None: it is the operator's."""
    ticket: Ticket | None = connection.scope["state"]["ticket"]
    return ticket


def _header(scope: Scope) -> str | None:
    wanted = HEADER.encode()
    found = [value for name, value in scope["headers"] if name == wanted]
    if len(found) > 1:
        raise BadTicket(f"there is more than one header {HEADER}")
    return found[0].decode("latin-1") if found else None


def _in_query(scope: Scope) -> str | None:
    query = parse_qs(scope["query_string"].decode("latin-1"))
    return query["ticket"][0] if "ticket" in query else None


def _asked(scope: Scope) -> dict[str, str]:
    """What a refused request was about. Its query is left out: a ticket may be there."""
    path = scope["path"][:SHOWN_PATH_CHARS].encode("utf-8", "replace").decode()
    return {"method": scope.get("method", "WS"), "path": path, "client": str((scope.get("client") or [""])[0])}
