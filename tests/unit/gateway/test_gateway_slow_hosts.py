"""A host that takes what it is asked and answers late may wait for a guest: no tenant makes it dead for others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

import gateway.sockets
import gateway.tunnel
from contract.hosts import Host
from contract.keys import Scope
from contract.tickets import Access
from gateway.errors import HostSlow
from gateway.heads import Way
from gateway.hosts import Hosts
from gateway.liveness import MAX_FAILURES
from gateway.metrics import Metrics
from gateway.passing import pass_request, pass_socket
from gateway.routes import FAMILIES, Passed
from gateway.services import Call
from gateway.tickets import Tickets
from gateway.tunnel import NoTunnel, Tunnels
from gateway.upstream import Upstream
from poold.link import guest

SANDBOX = "sb-abcdefghijklmn23"
SHORT_S = 0.1


class AnyTicket:
    def get(self, *_: Any, **__: Any) -> str:
        return "t"


TICKETS = cast(Tickets, AnyTicket())


@contextlib.asynccontextmanager
async def silent_host() -> AsyncIterator[Hosts]:
    """A host that lives, takes every connection, and then says nothing."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            pass
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    record = Host("h", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    hosts = Hosts(TICKETS, lambda name, address: Upstream(address, host=name))
    hosts.know({"h": record}, beats=False)
    hosts.heard("h", record)
    try:
        async with asyncio.timeout(10):
            yield hosts
    finally:
        await hosts.close()
        server.close()


def test_a_tunnel_waits_until_the_host_has_given_up_its_guest() -> None:
    assert gateway.tunnel.OPEN_S > 2 * guest.ANSWER_LIMIT_S


async def test_a_tunnel_that_opens_late_is_no_failure_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.tunnel, "OPEN_S", SHORT_S)
    async with silent_host() as hosts:
        tunnels = Tunnels(hosts, TICKETS)
        for _ in range(MAX_FAILURES):
            with pytest.raises(NoTunnel):
                await tunnels.open(SANDBOX, 80, "red")
        assert [row["failures"] for row in hosts.view()] == [0]
        await tunnels.close()


@pytest.mark.parametrize(("kind", "passing"), [("http", pass_request), ("websocket", pass_socket)])
async def test_a_late_answer_is_no_failure_of_its_host(
    kind: str, passing: Callable[..., Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.sockets, "ANSWER_S", SHORT_S)
    passed = Passed("x", "GET", "/v1/sandboxes/{id}/x", Scope.SANDBOXES, Access.READ, FAMILIES[0], SHORT_S)
    way = Way(passed, passed.scope, f"/v1/sandboxes/{SANDBOX}/x", None, is_short=False)
    async with silent_host() as hosts:
        metrics = Metrics()
        services: Any = SimpleNamespace(hosts=hosts, tickets=TICKETS, metrics=metrics)
        for _ in range(MAX_FAILURES):
            caller: Any = SimpleNamespace(owner="red")
            call = Call(services, "r", "127.0.0.1", None, [], sandbox=SANDBOX, caller=caller)
            scope = {
                "type": kind,
                "method": "GET",
                "headers": [(b"host", b"g")],
                "client": ("127.0.0.1", 1),
                "scheme": "http",
                "http_version": "1.1",
            }
            with pytest.raises(HostSlow):
                await passing(scope, client_of(kind), told_nothing, call, way)
        assert [row["failures"] for row in hosts.view()] == [0]
        assert metrics.upstream_failures == {"h": MAX_FAILURES}


def client_of(kind: str) -> Callable[[], Awaitable[dict[str, Any]]]:
    """A client that asks, and stays."""
    said = [{"type": "websocket.connect"}] if kind == "websocket" else []

    async def receive() -> dict[str, Any]:
        return said.pop() if said else await asyncio.Future()

    return receive


async def told_nothing(message: Any) -> None:
    raise AssertionError(message)
