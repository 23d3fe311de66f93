"""WebSockets to services in sandboxes, through a real gateway and a real host of the local engine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.gateway.preview_place import LIMIT_S, Place


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[tuple[int, list[dict[str, str]]]]:
    """A WebSocket service on loopback that echoes, and the headers with which it was opened."""
    opened: list[dict[str, str]] = []

    async def echo(socket: ServerConnection) -> None:
        assert socket.request is not None
        opened.append({name.lower(): value for name, value in socket.request.headers.raw_items()})
        async for message in socket:
            if message == "break":
                socket.transport.abort()
            elif message == "end":
                await socket.close(4001, "as asked")
            else:
                await socket.send(message)

    async with serve(echo, "127.0.0.1", 0, subprotocols=["chat"], compression=None) as server:  # type: ignore[list-item]
        yield next(iter(server.sockets)).getsockname()[1], opened


def dial(place: Place, port: int, path: str = "/", **headers: str) -> connect:
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"ws://{place.host(port)}:{place.gateway.port}{path}"
    return connect(
        url, host="127.0.0.1", port=place.gateway.port, proxy=None, additional_headers=told, subprotocols=["chat"]
    )


async def test_a_socket_goes_through_with_its_own_protocol_and_cookies_and_without_our_key(place: Place) -> None:
    async with echoing() as (port, opened), asyncio.timeout(LIMIT_S):
        async with dial(place, port, "/live?x=1", X_API_Key=place.key, Cookie="a=1; warren-preview=x") as socket:
            assert socket.subprotocol == "chat"
            for message in ("text", b"bytes", "x" * 200_000):
                await socket.send(message)
                assert await socket.recv() == message
        assert (opened[0]["host"], opened[0]["cookie"]) == (f"localhost:{port}", "a=1")
        assert place.key[4:] not in str(opened)


async def test_how_a_service_closes_a_socket_is_told_and_a_break_is_no_proper_end(place: Place) -> None:
    async with echoing() as (port, _), asyncio.timeout(LIMIT_S):
        for word, code in (("end", 4001), ("break", 1011)):
            async with dial(place, port, X_API_Key=place.key) as socket:
                await socket.send(word)
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
                assert socket.close_code == code


async def test_a_socket_without_key_or_link_is_refused_before_it_is_opened(place: Place) -> None:
    async with echoing() as (port, opened), asyncio.timeout(LIMIT_S):
        with pytest.raises(InvalidStatus) as refused:
            async with dial(place, port):
                pass
        assert (refused.value.response.status_code, opened) == (401, [])
        assert place.api("PUT", f"/ports/{port}", {"public": True}).status == 200
        for headers in ({}, {"X_API_Key": place.stranger}):
            async with dial(place, port, **headers) as socket:
                await socket.send("hello")
                assert await socket.recv() == "hello"


async def test_a_pass_opens_a_socket_for_pages_of_this_preview_and_not_for_those_beside_it(place: Place) -> None:
    beside = "http://3000-sb-bbbbbbbbbbbbbbbb.box.test"
    async with echoing() as (port, opened), asyncio.timeout(LIMIT_S):
        cookie = await place.cookie(port)
        for origin in (beside, "null"):
            with pytest.raises(InvalidStatus) as refused:
                async with dial(place, port, Cookie=cookie, Origin=origin):
                    pass
            assert (refused.value.response.status_code, opened) == (401, [])
        own = f"http://{place.host(port)}:{place.gateway.port}"
        for headers in ({"Cookie": cookie, "Origin": own}, {"X_API_Key": place.key, "Origin": beside}):
            async with dial(place, port, **headers) as socket:
                await socket.send("hello")
                assert await socket.recv() == "hello"
