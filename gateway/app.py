"""The gateway's face in plain ASGI: each request gets an id, a line in the log, and whoever it is for.

What belongs to one sandbox or task goes straight to its host (`gateway/proxy.py`), without Starlette in between; the
rest is answered by handlers. Errors become replies here and nowhere else.
"""

import secrets
import time
from collections.abc import Awaitable, Sequence
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route, Router

from contract.errors import RateLimited, WarrenError
from contract.keys import Forbidden, NoKey, Scope
from gateway.auth import Throttled, WrongKey, need
from gateway.errors import BadBody, BadFraming, HeadTooLarge, SlowHead
from gateway.headers import check_framing
from gateway.heads import Asgi, Branch, Head, Heads
from gateway.logs import AccessLog
from gateway.passing import pass_request, pass_socket
from gateway.replies import Heard, NoSuchRoute, Reply, WrongMethod, error_headers, error_of, refuse, refuse_socket
from gateway.routes import OPERATIONS, Operation, methods_of
from gateway.services import CALL, Call, Services
from gateway.shortcut import Shortcut

MAX_PATH_CHARS = 200  # of a line in the log


def _refusal(path: str) -> WarrenError:
    """For Starlette's: it does not know what is passed to hosts, and of several routes of one path only the first."""
    if allowed := ", ".join(sorted(methods_of(path))):
        return WrongMethod(f"this can only be asked with {allowed}", allowed)
    return NoSuchRoute("there is nothing under this path")


class App:
    """One gateway as an ASGI application. A branch is asked before all else, and takes what it returns an app for."""

    def __init__(self, services: Services, access_log: AccessLog | None, branches: Sequence[Branch] = ()) -> None:
        self._services = services
        self._access_log = access_log
        self._heads = heads = Heads(branches)
        self.shortcut = Shortcut(services, heads, self._new_id, self._count, is_logged=access_log is not None).take
        self._run = secrets.token_hex(5)
        self._number = 0
        self._router = Router([self._route(each) for each in OPERATIONS], redirect_slashes=False)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        return self._http(scope, receive, send) if scope["type"] == "http" else self._socket(scope, receive, send)

    async def _http(self, scope: Any, receive: Any, send: Any) -> None:
        head, services = self._heads.get(scope), self._services
        call: Call = scope.get(CALL) or self._call(head)  # it may come from the short way
        reply, heard = Reply(send, call.extra), Heard(receive)
        services.metrics.open_requests += 1
        try:
            if head.way is None:
                await self._answer(scope, heard, reply, call, head.branch)
            else:
                if call.caller is None:
                    self._authenticate(call, head.way.scope)
                reply.status = await pass_request(scope, heard, reply, call, head.way)
        except Exception as error:
            if reply.status:
                raise  # too late for another reply: the server breaks off, and the client sees that
            told = error_of(error)
            self._audit(call, told)
            await refuse(heard, reply, told)
        finally:
            services.metrics.open_requests -= 1
            self._count(scope, call, reply.status)

    async def _answer(self, scope: Any, receive: Any, reply: Reply, call: Call, branch: Asgi | None) -> None:
        """What does not go to the host of a sandbox as it is."""
        scope[CALL] = call
        if branch is not None:
            call.operation = "preview"
            await branch(scope, receive, reply)
            return
        check_framing(scope)  # what is passed on is checked there
        scope["app"] = self  # so that Starlette raises what it refuses
        try:
            await self._router(scope, receive, reply)
        except HTTPException:
            raise _refusal(scope["path"]) from None

    async def _socket(self, scope: Any, receive: Any, send: Any) -> None:
        head = self._heads.get(scope)
        scope[CALL] = call = self._call(head)
        status = 101
        self._services.metrics.open_requests += 1
        try:
            await self._pass_socket(scope, receive, send, call, head)
        except Exception as error:
            told = error_of(error)
            status = told.status
            self._audit(call, told)
            await refuse_socket(scope, send, told)
        finally:
            self._services.metrics.open_requests -= 1
            self._count(scope, call, status)

    async def _pass_socket(self, scope: Any, receive: Any, send: Any, call: Call, head: Head) -> None:
        if head.branch is not None:
            call.operation = "preview"
            await head.branch(scope, receive, send)
        elif head.way is None:
            raise NoSuchRoute("there is no WebSocket under this path")
        else:
            self._authenticate(call, head.way.scope)
            await pass_socket(scope, receive, send, call, head.way)

    def _route(self, operation: Operation) -> Route:
        async def endpoint(request: Request) -> Any:
            call: Call = request.scope[CALL]
            call.operation = operation.name
            if operation.scope is not None:
                self._authenticate(call, operation.scope)
            elif call.secret is not None and operation.name == "metrics":
                self._authenticate(call, Scope.ADMIN)
            return await operation.handler(request)

        return Route(operation.path, endpoint, methods=[operation.method], name=operation.name)

    def _authenticate(self, call: Call, needed: Scope) -> None:
        call.caller = caller = self._services.auth.caller(call.secret, call.address)
        call.extra += caller.headers
        need(caller, needed)

    def _call(self, head: Head) -> Call:
        request_id = head.request_id or self._new_id()
        extra = [(b"x-request-id", request_id.encode())]
        return Call(self._services, request_id, head.address, head.secret, extra, head.operation, head.sandbox)

    def _new_id(self) -> str:
        """One that no other request of any gateway has."""
        self._number += 1
        return f"rq-{self._run}-{self._number:x}"

    def refused(self, address: str, error: WarrenError) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """The server could not read a request. It is written down as any other refusal; what the client is told."""
        call = self._call(Head(address))
        self._audit(call, error)
        self._count({"path": "", "method": ""}, call, error.status)
        body = orjson.dumps(error.body())
        return [*error_headers(error), (b"content-length", b"%d" % len(body)), *call.extra], body

    def _audit(self, call: Call, error: WarrenError) -> None:
        """Refusals that an operator wants to know of."""
        refusals, request, address = self._services.refusals, call.request_id, call.address
        match error:
            case Throttled():
                refusals.add(error.action, request=request, address=address)
            case WrongKey():
                known = dict(error.known)
                owner = known.pop("owner", None)
                refusals.add(
                    error.action, request=request, address=address, **known, **({"of": owner} if owner else {})
                )
            case NoKey():
                refusals.add("gateway.no_key", request=request, address=address)
            case Forbidden() if call.caller is not None:
                refusals.add("gateway.forbidden", request=request, owner=call.who.owner, operation=call.operation)
            case BadFraming() | HeadTooLarge() | SlowHead() | BadBody():
                refusals.add(f"gateway.{error.code}", request=request, address=address)
            case RateLimited():
                refusals.add("gateway.too_fast", request=request, address=address)

    def _count(self, scope: Any, call: Call, status: int) -> None:
        seconds = time.perf_counter() - call.began_s
        self._services.metrics.count(call.operation, status, seconds)
        if self._access_log is not None:
            self._log(self._access_log, scope, call, status, seconds)

    def _log(self, access_log: AccessLog, scope: Any, call: Call, status: int, seconds: float) -> None:
        caller = call.caller
        access_log.add(
            {
                "at_ms": self._services.now_ms(),
                "what": "request",
                "request": call.request_id,
                "operation": call.operation,
                "method": scope.get("method", "WS"),
                "path": scope["path"][:MAX_PATH_CHARS],
                "status": status,
                "ms": round(seconds * 1000, 2),
                "address": call.address,
                "owner": None if caller is None else caller.owner,
                "key": None if caller is None else caller.key.id[:8],
                "sandbox": call.sandbox,
            }
        )
