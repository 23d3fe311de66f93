"""The data path: what belongs to one sandbox or task goes to its host with a ticket, wherever that is now."""

from collections.abc import Awaitable, Callable
from typing import Any

from contract.errors import NotMine
from gateway.auth import PLAIN, SUBPROTOCOL
from gateway.errors import HostSlow, HostUnreachable, not_found
from gateway.heads import Way
from gateway.proxy import forward
from gateway.routes import Passed
from gateway.services import Call
from gateway.sockets import forward_socket
from gateway.upstream import Begun, Upstream

Carry = Callable[[Upstream, str, Begun | None], Awaitable[int]]


def pass_request(scope: Any, receive: Any, send: Any, call: Call, way: Way) -> Awaitable[int]:
    """The status of the answer that was passed back. Raises only before anything was sent to the client."""
    target, request_id, asked, answer_s = way.target, call.request_id, way.asked, way.passed.answer_s

    def carry(upstream: Upstream, ticket: str, begun: Begun | None) -> Awaitable[int]:
        return forward(
            scope, receive, send, upstream, target, ticket, request_id, asked=asked, answer_s=answer_s, begun=begun
        )

    return _to_its_host(call, way.passed, carry)


async def pass_socket(scope: Any, receive: Any, send: Any, call: Call, way: Way) -> None:
    """As `pass_request`, for a WebSocket. The key in a subprotocol ends here."""
    given = scope.get("subprotocols") or ()
    offered = [each for each in given if not each.startswith(SUBPROTOCOL) and each != PLAIN]

    async def tell(message: Any) -> None:
        """Browsers hang up on a server that takes none of the subprotocols that they offer."""
        if message["type"] == "websocket.accept" and PLAIN in given:
            message.setdefault("subprotocol", PLAIN)
        await send(message)

    async def carry(upstream: Upstream, ticket: str, _begun: Begun | None) -> int:
        await forward_socket(
            scope, receive, tell, upstream, way.target, ticket, request_id=call.request_id, subprotocols=offered
        )
        return 101

    await _to_its_host(call, way.passed, carry)


async def _to_its_host(call: Call, passed: Passed, carry: Carry) -> int:
    sandbox = passed.family.checked(call.sandbox or "")
    services, owner = call.services, call.who.owner
    hosts = services.hosts
    for begun in (call.begun, None):  # a second time, if it is not where we thought
        host = hosts.place_of(sandbox) or await hosts.find(sandbox) if begun is None else begun.host
        ticket = services.tickets.get(host, owner, passed.access, sandbox)
        try:
            if begun is None:
                status = await carry(hosts.upstream(host), ticket, None)
            else:
                status = await carry(begun.upstream, ticket, begun)
        except NotMine:
            hosts.forget(sandbox)
        except HostSlow:
            # It took the request, and what it waits for may be a guest: whether the host lives, probes find out.
            services.metrics.upstream_failed(host)
            raise
        except HostUnreachable:
            hosts.failed(host)
            services.metrics.upstream_failed(host)
            raise
        else:
            hosts.answered(host)
            return status
    raise not_found(sandbox)
