"""The data path: what belongs to one sandbox goes to its host with a ticket, wherever that is now."""

from collections.abc import Awaitable, Callable
from typing import Any

from contract.errors import NotFound, NotMine
from contract.ids import sandbox_id
from gateway.auth import PLAIN, SUBPROTOCOL
from gateway.errors import HostUnreachable
from gateway.proxy import forward
from gateway.routes import Passed
from gateway.services import Call
from gateway.sockets import forward_socket
from gateway.upstream import Upstream

Carry = Callable[[Upstream, str], Awaitable[int]]


async def pass_request(scope: Any, receive: Any, send: Any, call: Call, passed: Passed) -> int:
    """The status of the answer that was passed back. Raises only before anything was sent to the client."""
    target, request_id, answer_s = _target(scope), call.request_id, passed.answer_s

    def carry(upstream: Upstream, ticket: str) -> Awaitable[int]:
        return forward(scope, receive, send, upstream, target, ticket, request_id=request_id, answer_s=answer_s)

    return await _to_its_host(call, passed, carry)


async def pass_socket(scope: Any, receive: Any, send: Any, call: Call, passed: Passed) -> None:
    """As `pass_request`, for a WebSocket. The key in a subprotocol ends here."""
    target = _target(scope)
    given = scope.get("subprotocols") or ()
    offered = [each for each in given if not each.startswith(SUBPROTOCOL) and each != PLAIN]

    async def tell(message: Any) -> None:
        """Browsers hang up on a server that takes none of the subprotocols that they offer."""
        if message["type"] == "websocket.accept" and PLAIN in given:
            message.setdefault("subprotocol", PLAIN)
        await send(message)

    async def carry(upstream: Upstream, ticket: str) -> int:
        await forward_socket(
            scope, receive, tell, upstream, target, ticket, request_id=call.request_id, subprotocols=offered
        )
        return 101

    await _to_its_host(call, passed, carry)


async def _to_its_host(call: Call, passed: Passed, carry: Carry) -> int:
    sandbox = sandbox_id(call.sandbox or "")
    hosts, owner = call.services.hosts, call.who.owner
    for _ in range(2):  # a second time, if it is not where we thought
        host = await hosts.find(sandbox)
        ticket = call.services.tickets.get(host, owner, passed.access, sandbox)
        try:
            status = await carry(hosts.upstream(host), ticket)
        except NotMine:
            hosts.forget(sandbox)
        except HostUnreachable:
            hosts.failed(host)
            call.services.metrics.upstream_failed(host)
            raise
        else:
            hosts.answered(host)
            return status
    raise NotFound(f"no sandbox {sandbox}", sandbox=sandbox)


def _target(scope: Any) -> str:
    """Path and query as they go to the host. The path is one of ours: it has nothing in it that needs escaping."""
    query: bytes = scope["query_string"]
    path: str = scope["path"]
    return f"{path}?{query.decode('latin-1')}" if query else path
