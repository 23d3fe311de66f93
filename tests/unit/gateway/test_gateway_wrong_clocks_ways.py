"""A host whose clock is wrong refuses every ticket: on every way through the gateway it is a host not to be reached."""

import asyncio
import contextlib
import http
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flow_hosts import always, scripted_host
from flow_servers import raw
from test_gateway_proxy import END
from test_gateway_proxy import gateway as web_gateway
from test_gateway_sockets import client
from test_gateway_sockets import gateway as socket_gateway
from test_gateway_wrong_clocks import refusal
from websockets.asyncio.server import Request, Response, ServerConnection
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus

from contract.hosts import Host
from contract.tickets import Access
from gateway.errors import HostUnreachable
from gateway.hosts import Hosts
from gateway.liveness import MAX_FAILURES
from gateway.tickets import Tickets
from gateway.tunnel import NoTunnel, Tunnels
from gateway.upstream import Upstream

SANDBOX = "sb-abcdefghijklmn23"
BAD_TICKET = refusal(b"bad_ticket")


def tickets(folder: Path) -> Tickets:
    key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "tickets.key").write_bytes(key)
    return Tickets(folder / "tickets.key", now_ms=lambda: 1_000_000, nonce=lambda: "n")


@pytest.mark.parametrize("accept", [b"*/*", b"text/event-stream"])
async def test_a_request_and_a_stream_hear_that_the_host_cannot_be_reached(accept: bytes) -> None:
    async with web_gateway(always(BAD_TICKET)) as (port, _, _):
        reply = await raw(port, b"GET /v1/sandboxes/x HTTP/1.1\r\nAccept: " + accept + b"\r\n" + END)
    assert reply.startswith(b"HTTP/1.1 503"), reply
    assert b"host_unreachable" in reply
    assert b"clocks" in reply


async def test_a_websocket_hears_that_the_host_cannot_be_reached() -> None:
    async def never(_: ServerConnection) -> None:
        raise AssertionError

    def refuse(_connection: ServerConnection, _request: Request) -> Response:
        told = BAD_TICKET.partition(b"\r\n\r\n")[2]
        return Response(http.HTTPStatus.UNAUTHORIZED, "Unauthorized", Headers(), told)

    async with socket_gateway(never, process_request=refuse) as (port, _):
        with pytest.raises(InvalidStatus) as caught:
            async with client(port):
                pass
    assert caught.value.response.status_code == 503
    assert orjson.loads(caught.value.response.body or b"")["error"]["code"] == "host_unreachable"


@contextlib.asynccontextmanager
async def with_hosts(folder: Path) -> Any:
    """A host that refuses all tickets, and lives as far as anybody knows."""
    found = tickets(folder)
    async with scripted_host(always(BAD_TICKET)) as host:
        hosts = Hosts(found, lambda name, address: Upstream(address, host=name))
        record = Host("h", host.address)
        hosts.know({"h": record}, beats=False)
        hosts.heard("h", record)
        try:
            yield hosts, found
        finally:
            await hosts.close()


async def test_a_preview_hears_that_the_host_cannot_be_reached(tmp_path: Path) -> None:
    async with asyncio.timeout(30), with_hosts(tmp_path) as (hosts, found):
        tunnels = Tunnels(hosts, found)
        with pytest.raises(NoTunnel, match="clocks") as caught:
            await tunnels.open(SANDBOX, 80, "red")
        assert (caught.value.status, caught.value.code) == (503, "host_unreachable")
        await tunnels.close()


async def test_a_host_that_refuses_tickets_is_left_aside(tmp_path: Path) -> None:
    async with with_hosts(tmp_path) as (hosts, _):
        for _ in range(MAX_FAILURES):
            with pytest.raises(HostUnreachable):
                await hosts.ask("h", "GET", "/v1/host", Access.HOST, even_dead=True)
        assert not hosts.alive()
