"""Previews in plain ASGI: who may see one, and the service behind it.

Allowed is the owner by key, whoever has a pass of theirs in a cookie, and everybody where the port is public, which its
host knows. Whoever comes without a key has the rate of their address. Keys and passes end here: no service sees them.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from contract.errors import CallerError, FaultError, NotFound, RateLimited, WarrenError
from contract.keys import NoKey, Scope
from contract.tickets import BadTicket
from gateway.auth import SUBPROTOCOL, Auth, need, secret_of
from gateway.errors import HostBroken, HostSaid, HostUnreachable
from gateway.headers import asked_headers
from gateway.passes import Passes
from gateway.preview.kept import Kept
from gateway.preview.mending import COOKIE, keys_in, passes_in, to_browser, to_service
from gateway.preview.origins import SAFE, is_from_elsewhere
from gateway.preview.pages import HEADERS, page, wants_page
from gateway.preview.where import MAX_HOST_CHARS, Where, where
from gateway.proxy import forward
from gateway.services import CALL
from gateway.sockets import CONNECTED, forward_socket
from gateway.tunnel import NoTunnel

log = logging.getLogger("gateway.preview")

PRIVATE = (
    "there is no public port here; open it with a link from its owner, which needs a client that keeps cookies "
    "(curl -L -b '' LINK), or send the owner's key (Authorization: Bearer KEY)"
)
REFUSED = "gateway.preview_refused"  # in the audit
PASSES_A_TOKEN = 16  # checking a signature costs more than the rest of a request
EVERYBODY = ""  # the owner in a ticket for a visitor who has not said who they are
Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Pairs = list[tuple[bytes, bytes]]


class PreviewPrivate(CallerError):
    """Whoever asks has neither key nor link. Whether there is such a preview is not said."""

    status = 401
    code = "preview_private"


class ServiceBroken(FaultError):
    """What listens on the port did not answer in HTTP, or broke off."""

    status = 502
    code = "bad_service_reply"


@dataclass(frozen=True)
class Visit:
    """A request for a preview, and who makes it."""

    where: Where
    owner: str
    request_id: str

    @property
    def is_public(self) -> bool:
        return self.owner == EVERYBODY


class Previews:
    """A branch of the gateway's application. `close` hangs up everywhere."""

    def __init__(self, domain: str | None, auth: Auth, passes: Passes, kept: Kept) -> None:
        self._domain = domain
        self._auth = auth
        self._passes = passes
        self._kept = kept

    def branch(self, scope: Any) -> Asgi | None:
        """What answers this request, if it is for a preview."""
        try:
            found = where(scope, self._domain)
        except WarrenError as error:
            return self._refusing(error)
        return None if found is None else self._answering(found)

    def _answering(self, found: Where) -> Asgi:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            scope[CALL].sandbox = found.sandbox
            try:
                await self._answer(found, scope, receive, send)
            except WarrenError as error:
                await self._refuse(scope, send, error)

        return answer

    def _refusing(self, error: WarrenError) -> Asgi:
        async def answer(scope: Any, _receive: Any, send: Any) -> None:
            self._auth.visitor(scope[CALL].address)
            await self._refuse(scope, send, error)

        return answer

    async def _answer(self, found: Where, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and found.given is not None and scope["method"] in SAFE:
            await self._let_in(found, scope, send)
        elif scope["type"] == "http" and not found.target.startswith("/"):
            await _redirect(send, 308, f"{found.prefix}/{found.target}")  # so that what is relative on it is below it
        else:
            found = replace(found, target=found.target or "/")
            visit = Visit(found, self._owner(found, scope), scope[CALL].request_id)
            await self._show(visit, scope, receive, send)

    async def _let_in(self, found: Where, scope: Any, send: Any) -> None:
        """A link was opened: its pass becomes a cookie, and the address is clean again."""
        self._auth.visitor(scope[CALL].address)
        owner, life_s = self._passes.read(found.given or "", found.label)
        log.info("a link was opened", extra={"sandbox": found.sandbox, "owner": owner, "port": found.port})
        cookie = f"{COOKIE}={found.given}; Path={found.prefix}/; Max-Age={life_s}; HttpOnly; SameSite=Lax"
        if scope["scheme"] == "https":
            cookie += "; Secure"
        target = found.target if found.target.startswith("/") else f"/{found.target}"
        await _redirect(send, 303, found.prefix + target, (b"set-cookie", cookie.encode()))

    def _owner(self, found: Where, scope: Any) -> str:
        """For whom the visitor speaks. A key that is wrong is refused, a pass that is over, or that a page of
        another preview makes use of, is as good as none."""
        call = scope[CALL]
        if keys := _keys(scope):
            call.caller = self._auth.caller(secret_of(keys, scope["type"] == "websocket"), call.address)
            need(call.caller, Scope.SANDBOXES)
            owner: str = call.caller.owner
            return owner
        self._auth.visitor(call.address)
        if is_from_elsewhere(found, scope):
            return EVERYBODY
        for number, given in enumerate(passes_in(scope["headers"]), 1):
            if number % PASSES_A_TOKEN == 0:
                self._auth.visitor(call.address)
            try:
                return self._passes.read(given, found.label)[0]
            except BadTicket:
                continue
        return EVERYBODY

    async def _show(self, visit: Visit, scope: Any, receive: Any, send: Any) -> None:
        """What the service says. A port of another owner may still be public."""
        try:
            await self._pass_on(visit, scope, receive, send)
        except (HostSaid, NotFound) as error:
            if error.status != 404:
                raise
            if visit.is_public:
                raise PreviewPrivate(PRIVATE) from None
            if scope.get("method", "GET") not in SAFE:  # others may have a body, which is read once
                raise
            if scope["type"] == "websocket":
                scope[CONNECTED] = True
            await self._show(replace(visit, owner=EVERYBODY), scope, receive, send)

    async def _pass_on(self, visit: Visit, scope: Any, receive: Any, send: Any) -> None:
        found = visit.where
        try:
            async with self._kept.use(found.sandbox, found.port, visit.owner) as upstream:
                if scope["type"] == "websocket":
                    await self._socket(visit, scope, receive, send, upstream)
                    return
                is_from_nowhere = (b"origin", b"null") in scope["headers"]
                await forward(
                    scope,
                    receive,
                    send,
                    upstream,
                    found.target,
                    "",
                    visit.request_id,
                    asked=asked_headers(scope, to_service(scope["headers"], found), keep_credentials=True),
                    extra_headers=_prefix(found),
                    mend=lambda _status, told: to_browser(
                        told, found, is_public=visit.is_public, from_nowhere=is_from_nowhere
                    ),
                )
        except NoTunnel:
            raise
        except (HostUnreachable, HostBroken) as error:
            raise ServiceBroken(
                f"what listens on port {found.port} did not answer in HTTP, or broke off", port=found.port
            ) from error

    async def _socket(self, visit: Visit, scope: Any, receive: Any, send: Any, upstream: Any) -> None:
        found = visit.where
        offered = [each for each in (scope.get("subprotocols") or ()) if not each.startswith(SUBPROTOCOL)]
        await forward_socket(
            scope,
            receive,
            send,
            upstream,
            found.target,
            "",
            request_id=visit.request_id,
            subprotocols=offered,
            headers=to_service(scope["headers"], found),
            extra_headers=_prefix(found),
            keep_credentials=True,
        )

    async def _refuse(self, scope: Any, send: Any, error: WarrenError) -> None:
        """A page for a person; for everybody else the gateway says it in its own way."""
        if isinstance(error, NoKey | RateLimited):
            raise error  # it came with a key, or too often: no person
        if 400 <= error.status < 500:
            call = scope[CALL]
            told = {"code": error.code, "host": _host_of(scope)}
            call.services.refusals.add(REFUSED, request=call.request_id, address=call.address, **told)
        if scope["type"] != "http" or not wants_page(scope["headers"]) or scope["method"] not in SAFE:
            raise error
        body = page(error, scope[CALL].request_id)
        headers = [*HEADERS, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def close(self) -> None:
        await self._kept.close()


def _keys(scope: Any) -> Pairs:
    """The headers of the request that have a key of ours in them."""
    keys = keys_in(scope["headers"])
    if not keys and scope["type"] == "websocket":
        offered = [each for each in (scope.get("subprotocols") or ()) if each.startswith(SUBPROTOCOL)]
        keys = [(b"sec-websocket-protocol", each.encode()) for each in offered[:1]]
    return keys


def _host_of(scope: Any) -> str:
    found = next((value for name, value in scope["headers"] if name == b"host"), b"")
    return found[:MAX_HOST_CHARS].decode("latin-1")


def _prefix(found: Where) -> Pairs:
    return [(b"x-forwarded-prefix", found.prefix.encode())] if found.prefix else []


async def _redirect(send: Any, status: int, target: str, *more: tuple[bytes, bytes]) -> None:
    # Two slashes at its beginning would name another host.
    location = b"/" + target.lstrip("/").encode("latin-1")
    headers = [(b"location", location), (b"referrer-policy", b"no-referrer"), (b"cache-control", b"no-store")]
    await send(
        {"type": "http.response.start", "status": status, "headers": [*headers, *more, (b"content-length", b"0")]}
    )
    await send({"type": "http.response.body", "body": b""})
