"""Around every request: its id, which is in the log, the audit and the reply, and how long it took."""

import re
import time
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contract.ids import SANDBOX, TASK
from poold.logs import ids
from poold.metrics import Metrics

REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
STARTS = ("http.response.start", "websocket.http.response.start")  # the latter of a WebSocket that is refused


class Requests:
    """Gives each request an id (its own `X-Request-Id`, if it makes sense) and counts it."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, new_id: Callable[[], str]) -> None:
        self._app = app
        self._metrics = metrics
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope).get("x-request-id", "")
        request_id = asked if REQUEST_ID.fullmatch(asked) else self._new_id()
        scope.setdefault("state", {})["request"] = request_id
        status = 0

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] in STARTS:
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        began = time.monotonic()
        about = SANDBOX.search(scope["path"]) or TASK.search(scope["path"])
        with ids(request=request_id, sandbox=about and about[0]):
            try:
                await self._app(scope, receive, tell)
            finally:
                self._count(scope, status, time.monotonic() - began)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route, method = _route(scope), scope.get("method", "WS")
        self._metrics.http_requests_total.add(route=route, method=method, status=str(status))
        self._metrics.http_request_seconds.observe(seconds, route=route)


def _route(scope: Scope) -> str:
    """The name of the function that answered: few, and none of them the client's to choose."""
    endpoint: Any = scope.get("endpoint")
    if endpoint is None:
        return "none"
    return f"{endpoint.__module__.rpartition('.')[2]}.{endpoint.__name__}"
