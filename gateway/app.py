"""The gateway's face in plain ASGI: each request gets an id, a line in the log, and whoever it is for.

What belongs to one sandbox goes straight to its host (`gateway/proxy.py`), without Starlette in between; the rest is
answered by handlers. Errors become replies here and nowhere else.
"""

import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route, Router

from contract.errors import RateLimited, WarrenError
from contract.keys import Forbidden, NoKey, Scope
from gateway.auth import Throttled, WrongKey, need, secret_of
from gateway.headers import BadFraming, check_framing
from gateway.logs import AccessLog
from gateway.passing import pass_request, pass_socket
from gateway.proxy import CLIENT_LEFT
from gateway.replies import Heard, NoSuchRoute, Reply, WrongMethod, error_of, refuse, refuse_socket
from gateway.routes import OPERATIONS, PREFIX, Operation, Passed, methods_of, passed_of
from gateway.services import Call, Services

REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_PATH_CHARS = 200  # of a line in the log

Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Branch = Callable[[Any], Asgi | None]


def _refusal(path: str) -> WarrenError:
    """For Starlette's: it does not know what is passed to hosts, and of several routes of one path only the first."""
    if allowed := ", ".join(sorted(methods_of(path))):
        return WrongMethod(f"this can only be asked with {allowed}", allowed)
    return NoSuchRoute("there is nothing under this path")


class App:
    """One gateway as an ASGI application. A branch is asked before all else, and takes what it returns an app for."""

    def __init__(self, services: Services, access_log: AccessLog, branches: Sequence[Branch] = ()) -> None:
        self._services = services
        self._access_log = access_log
        self._branches = branches
        self._run = secrets.token_hex(5)
        self._number = 0
        self._router = Router([self._route(each) for each in OPERATIONS], redirect_slashes=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)

    async def _http(self, scope: Any, receive: Any, send: Any) -> None:
        call = self._call(scope)
        reply, heard = Reply(send, call.request_id), Heard(receive)
        began = time.perf_counter()
        self._services.metrics.open_requests += 1
        try:
            await self._answer(scope, heard, reply, call)
        except Exception as error:
            if reply.status:
                raise  # too late for another reply: the server breaks off, and the client sees that
            told = error_of(error)
            self._audit(call, told)
            await refuse(heard, reply, told)
        finally:
            self._services.metrics.open_requests -= 1
            self._count(scope, call, reply.status, time.perf_counter() - began)

    async def _answer(self, scope: Any, receive: Any, reply: Reply, call: Call) -> None:
        scope["warren"] = call
        for branch in self._branches:
            app = branch(scope)
            if app is not None:
                call.operation = "preview"
                await app(scope, receive, reply)
                return
        path: str = scope["path"]
        if path.startswith(PREFIX):
            call.sandbox, passed = passed_of(scope["method"], path)
            if passed is not None:
                await self._pass(scope, receive, reply, call, passed)
                return
        check_framing(scope)  # what is passed on is checked there
        scope["app"] = self  # so that Starlette raises what it refuses
        call.extra = reply.extra  # one list: the guard of an operation adds to it
        try:
            await self._router(scope, receive, reply)
        except HTTPException:
            raise _refusal(path) from None

    async def _pass(self, scope: Any, receive: Any, reply: Reply, call: Call, passed: Passed) -> None:
        """The data path: to the sandbox's host and back."""
        call.operation = passed.name
        self._authenticate(scope, call, Scope.SANDBOXES)
        reply.extra += call.who.headers
        status = await pass_request(scope, receive, reply, call, passed)
        if status == CLIENT_LEFT:
            reply.status = status

    async def _socket(self, scope: Any, receive: Any, send: Any) -> None:
        call = self._call(scope)
        scope["warren"] = call
        began = time.perf_counter()
        status = 101
        self._services.metrics.open_requests += 1
        try:
            await self._pass_socket(scope, receive, send, call)
        except Exception as error:
            told = error_of(error)
            status = told.status
            self._audit(call, told)
            await refuse_socket(scope, send, told)
        finally:
            self._services.metrics.open_requests -= 1
            self._count(scope, call, status, time.perf_counter() - began)

    async def _pass_socket(self, scope: Any, receive: Any, send: Any, call: Call) -> None:
        for branch in self._branches:
            app = branch(scope)
            if app is not None:
                call.operation = "preview"
                await app(scope, receive, send)
                return
        call.sandbox, passed = passed_of("WS", scope["path"])
        if passed is None or not scope["path"].startswith(PREFIX):
            raise NoSuchRoute("there is no WebSocket under this path")
        call.operation = passed.name
        self._authenticate(scope, call, Scope.SANDBOXES)
        await pass_socket(scope, receive, send, call, passed)

    def _route(self, operation: Operation) -> Route:
        async def endpoint(request: Request) -> Any:
            call: Call = request.scope["warren"]
            call.operation = operation.name
            if operation.scope is not None:
                self._authenticate(request.scope, call, operation.scope)
            elif secret_of(request.scope["headers"], is_socket=False) is not None and operation.name == "metrics":
                self._authenticate(request.scope, call, Scope.ADMIN)
            if call.caller is not None:
                call.extra += call.caller.headers
            return await operation.handler(request)

        return Route(operation.path, endpoint, methods=[operation.method], name=operation.name)

    def _authenticate(self, scope: Any, call: Call, needed: Scope) -> None:
        call.caller = self._services.auth.caller(scope, call.address)
        need(call.caller, needed)

    def _call(self, scope: Any) -> Call:
        client = scope.get("client")
        return Call(self._services, self._request_id(scope), client[0] if client else "")

    def _request_id(self, scope: Any) -> str:
        """The client's own, if it makes sense; else one that no other request of any gateway has."""
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                asked: str = value.decode("latin-1")
                if REQUEST_ID.fullmatch(asked):
                    return asked
                break
        self._number += 1
        return f"rq-{self._run}-{self._number:x}"

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
            case BadFraming():
                refusals.add("gateway.bad_framing", request=request, address=address)
            case RateLimited():
                refusals.add("gateway.too_fast", request=request, address=address)

    def _count(self, scope: Any, call: Call, status: int, seconds: float) -> None:
        self._services.metrics.count(call.operation, status, seconds)
        caller = call.caller
        self._access_log.add(
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
