"""WebSockets through our server to a host and back: what is said, how it ends, and who waits for whom."""

import asyncio
import contextlib
import http
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest
from flow_servers import served
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import Request, Response, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from contract.errors import NotMine, WarrenError
from gateway.headers import target_of
from gateway.sockets import forward_socket, refuse_socket
from gateway.upstream import Upstream
from tests.ports import free_port

Talk = Callable[[ServerConnection], Awaitable[None]]


class Gateway:
    def __init__(self, addresses: list[str]) -> None:
        self.upstreams = [Upstream(address) for address in addresses]
        self.done: asyncio.Queue[None] = asyncio.Queue()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._ask(scope, receive, send)
        except WarrenError as error:
            await refuse_socket(send, error.status, [], orjson.dumps(error.body()))
        finally:
            self.done.put_nowait(None)

    async def _ask(self, scope: Any, receive: Any, send: Any) -> None:
        for upstream in self.upstreams:
            with contextlib.suppress(NotMine):
                names = scope["subprotocols"]
                asked = {"request_id": "r-1", "subprotocols": names}
                return await forward_socket(scope, receive, send, upstream, target_of(scope), "t-1", **asked)
        raise NotMine("nobody has it")


@contextlib.asynccontextmanager
async def gateway(talk: Talk, *before: str, **options: Any) -> AsyncIterator[tuple[int, Gateway]]:
    """A gateway's port, in front of a host for which `talk` speaks."""
    async with serve(talk, "127.0.0.1", 0, compression=None, max_size=1 << 30, close_timeout=1, **options) as host:
        port = next(iter(host.sockets)).getsockname()[1]
        app = Gateway([*before, f"http://127.0.0.1:{port}"])
        async with served(app) as port:
            yield port, app


def client(port: int, **options: Any) -> connect:
    return connect(f"ws://127.0.0.1:{port}/a?b=c", proxy=None, compression=None, max_size=1 << 30, **options)


async def echo(host: ServerConnection) -> None:
    async for message in host:
        await host.send(message)


async def closing(socket: ClientConnection) -> tuple[int, str]:
    """How the other side ends it."""
    with pytest.raises(ConnectionClosed) as caught:
        await socket.recv()
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason


async def test_text_stays_text_and_bytes_stay_bytes() -> None:
    async with gateway(echo) as (port, _), client(port) as socket:
        for message in ("text", "", "ä€", b"bytes", b"", bytes(16 << 20)):
            await socket.send(message)
            assert await socket.recv() == message


async def test_the_host_sees_a_ticket_and_nothing_of_the_clients_keys() -> None:
    asked: list[Request] = []

    async def talk(host: ServerConnection) -> None:
        assert host.request is not None
        asked.append(host.request)

    lies = {"Authorization": "Bearer wrn_secret", "Cookie": "a=b", "Warren-Owner": "root", "X-Kept": "yes"}
    async with gateway(talk) as (port, _), client(port, additional_headers=lies) as socket:
        assert await closing(socket) == (1000, "")
    headers = {name.lower(): value for name, value in asked[0].headers.raw_items()}
    assert asked[0].path == "/a?b=c"
    assert headers["warren-ticket"] == "t-1"
    assert headers["x-kept"] == "yes"
    assert not {"authorization", "cookie", "warren-owner"} & set(headers)


async def test_the_hosts_choice_of_a_subprotocol_is_the_clients() -> None:
    async with (
        gateway(echo, subprotocols=["two", "three"]) as (port, _),
        client(port, subprotocols=["one", "two"]) as socket,
    ):
        assert socket.subprotocol == "two"


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1001, "bye"), (4400, "bad"), (1011, "broken")])
async def test_how_the_host_closes_is_told_to_the_client(code: int, reason: str) -> None:
    async def talk(host: ServerConnection) -> None:
        await host.close(code, reason)

    async with gateway(talk) as (port, _), client(port) as socket:
        assert await closing(socket) == (code, reason)


async def test_a_message_of_a_host_in_endless_empty_pieces_is_given_up() -> None:
    """It may be a service in a sandbox that speaks. The WebSocket client that we use counts them."""

    async def talk(host: ServerConnection) -> None:
        empty = Frame(Opcode.CONT, b"", fin=False).serialize(mask=False)
        host.protocol.send_frame(Frame(Opcode.TEXT, b"", fin=False))
        host.send_data()
        while not host.transport.is_closing():
            host.transport.write(empty * 1000)
            await asyncio.sleep(0)

    async with gateway(talk) as (port, _), client(port) as socket:
        assert (await closing(socket))[0] == 1009


async def test_a_host_that_dies_is_never_a_proper_end() -> None:
    async def talk(host: ServerConnection) -> None:
        await host.send("hello")
        host.transport.abort()

    async with gateway(talk) as (port, _), client(port) as socket:
        assert await socket.recv() == "hello"
        assert (await closing(socket))[0] == 1011


async def test_a_host_that_says_what_is_no_frame_is_never_a_proper_end() -> None:
    async def talk(host: ServerConnection) -> None:
        host.transport.write(b"\xff\xff\xff\xff")
        await host.wait_closed()

    async with gateway(talk) as (port, _), client(port) as socket:
        assert (await closing(socket))[0] == 1011


async def test_a_message_that_is_too_long_is_refused() -> None:
    async def talk(host: ServerConnection) -> None:
        await host.send(bytes((16 << 20) + 1))
        await host.wait_closed()

    async with gateway(talk) as (port, _), client(port) as socket:
        assert (await closing(socket))[0] == 1009


@pytest.mark.parametrize("code", [1000, 4001])
async def test_how_the_client_closes_is_told_to_the_host(code: int) -> None:
    closed: asyncio.Queue[int | None] = asyncio.Queue()

    async def talk(host: ServerConnection) -> None:
        await host.wait_closed()
        closed.put_nowait(host.close_code)

    async with gateway(talk) as (port, app):
        async with client(port) as socket:
            await socket.close(code, "reason")
        assert await closed.get() == code
        await app.done.get()


async def test_a_client_that_is_gone_ends_the_hosts_side_at_once() -> None:
    closed: asyncio.Queue[int | None] = asyncio.Queue()

    async def talk(host: ServerConnection) -> None:
        await host.send("hello")
        await host.wait_closed()
        closed.put_nowait(host.close_code)

    async with gateway(talk) as (port, app):
        socket = await client(port)
        await socket.recv()
        socket.transport.abort()
        assert await closed.get() == 1001
        await app.done.get()


async def test_a_refusal_of_the_host_has_its_status_and_body() -> None:
    def refuse(_host: ServerConnection, _request: Request) -> Response:
        headers = Headers({"Content-Type": "application/json", "Warren-Secret": "s", "Content-Length": "7"})
        return Response(409, "Conflict", headers, b'{"a":1}')

    async with gateway(echo, process_request=refuse) as (port, _):
        with pytest.raises(InvalidStatus) as caught:
            await client(port)
    reply = caught.value.response
    assert reply.status_code == http.HTTPStatus.CONFLICT
    assert reply.body == b'{"a":1}'
    assert "warren-secret" not in reply.headers


async def test_a_redirect_of_a_host_is_not_followed() -> None:
    def redirect(_host: ServerConnection, request: Request) -> Response | None:
        headers = Headers({"Location": "/elsewhere", "Content-Length": "0"})
        return Response(302, "Found", headers, b"") if request.path == "/a?b=c" else None

    async with gateway(echo, process_request=redirect) as (port, _):
        with pytest.raises(InvalidStatus) as caught:
            await client(port)
    assert caught.value.response.status_code == 502


async def test_the_next_host_is_asked_when_it_is_not_the_firsts() -> None:
    def not_mine(_host: ServerConnection, _request: Request) -> Response:
        return Response(404, "Not Found", Headers({"Warren-Not-Mine": "1", "Content-Length": "0"}), b"")

    async with serve(echo, "127.0.0.1", 0, process_request=not_mine) as first:
        address = f"http://127.0.0.1:{next(iter(first.sockets)).getsockname()[1]}"
        async with gateway(echo, address) as (port, _), client(port) as socket:
            await socket.send("hello")
            assert await socket.recv() == "hello"


async def test_a_host_that_cannot_be_reached_is_503() -> None:
    async with served(Gateway([f"http://127.0.0.1:{free_port()}"])) as port:
        with pytest.raises(InvalidStatus) as caught:
            await client(port)
    assert caught.value.response.status_code == 503


async def test_a_client_that_does_not_read_makes_the_host_wait() -> None:
    sent = 0

    async def talk(host: ServerConnection) -> None:
        nonlocal sent
        for _ in range(256):
            await host.send(bytes(1 << 20))
            sent += 1

    async with gateway(talk) as (port, _):
        socket = await client(port, max_queue=1)
        before = -1
        while sent != before or sent == 0:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 64
        socket.transport.abort()


async def test_a_host_that_does_not_read_makes_the_client_wait() -> None:
    sent = 0
    seen = asyncio.Event()

    async def talk(_host: ServerConnection) -> None:
        await seen.wait()

    async with gateway(talk, max_queue=1) as (port, _):
        socket = await client(port)

        async def flood() -> None:
            nonlocal sent
            while True:
                await socket.send(bytes(1 << 20))
                sent += 1

        flooding = asyncio.create_task(flood())
        before = -1
        while sent != before or sent == 0:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 64
        seen.set()
        flooding.cancel()
        await asyncio.wait([flooding])
        socket.transport.abort()
