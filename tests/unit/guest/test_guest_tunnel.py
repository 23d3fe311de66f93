"""Tunnels to ports: bytes both ways, each direction with an end of its own, and never more held than two buffers."""

import asyncio
import contextlib
import hashlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.ports import free_port
from tests.unit.guest.client import LIMIT_S, Client, Conversation

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
BIG = os.urandom(1 << 20) * 24


@contextlib.asynccontextmanager
async def service(serve: Serve, address: str = "127.0.0.1") -> AsyncIterator[int]:
    """A program that listens on loopback only."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError):
                await serve(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(handle, address, 0, backlog=2000, limit=1 << 22)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    await reader.read()


async def tunnel(guest: Client, port: int) -> Conversation:
    conversation = await guest.connect()
    await conversation.send("GET", f"/ports/{port}/connect", Connection="Upgrade", Upgrade="tcp")
    head = await conversation.head()
    assert (head.status, head.headers["upgrade"]) == (101, "tcp")
    return conversation


async def until_no_tunnel_is_open(guest: Client) -> None:
    """The guest holds no more connections than ours."""

    async def none() -> bool:
        return sum(is_socket(f"/proc/{guest.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{guest.pid}/fd")) <= 6

    await guest.until(none)


def is_socket(fd: str) -> bool:
    with contextlib.suppress(FileNotFoundError):  # closed meanwhile
        return os.readlink(fd).startswith("socket:")
    return False


async def read(conversation: Conversation, count: int) -> bytes:
    async with asyncio.timeout(LIMIT_S):
        return await conversation.reader.readexactly(count)


async def rest(conversation: Conversation) -> bytes:
    async with asyncio.timeout(LIMIT_S):
        return await conversation.reader.read()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_a_service_that_listens_on_loopback_only_is_reached(guest: Client, address: str) -> None:
    async with service(echo, address) as port:
        conversation = await tunnel(guest, port)
        for word in (b"hello", b"\r\n\r\n", b"\x00\xff"):
            conversation.writer.write(word)
            assert await read(conversation, len(word)) == word


async def test_bytes_that_came_behind_the_request_are_passed_on_first(guest: Client) -> None:
    async with service(echo) as port:
        conversation = await guest.connect()
        head = f"GET /ports/{port}/connect HTTP/1.1\r\nConnection: keep-alive, Upgrade\r\nUpgrade: TCP\r\n\r\n"
        conversation.writer.write(head.encode() + b"early")
        assert (await conversation.head()).status == 101
        conversation.writer.write(b" and late")
        assert await read(conversation, 14) == b"early and late"


async def test_large_streams_go_both_ways_at_once_unchanged(guest: Client) -> None:
    async with service(echo) as port:
        conversation = await tunnel(guest, port)

        async def send() -> None:
            conversation.writer.write(BIG)
            await conversation.writer.drain()
            conversation.writer.write_eof()

        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            got = await conversation.reader.read()
            while piece := await conversation.reader.read():
                got += piece
        assert hashlib.sha256(got).digest() == hashlib.sha256(BIG).digest()


async def test_a_client_that_ends_its_direction_still_gets_the_answer(guest: Client) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d" % len(await reader.read()))
        writer.write_eof()
        await writer.drain()

    async with service(count) as port:
        conversation = await tunnel(guest, port)
        conversation.writer.write(b"x" * 1000)
        conversation.writer.write_eof()
        assert await rest(conversation) == b"1000"


async def test_a_service_that_ends_its_direction_still_gets_what_is_sent(guest: Client) -> None:
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.write_eof()
        got.set_result(await reader.read())

    async with service(hear) as port:
        conversation = await tunnel(guest, port)
        assert await rest(conversation) == b"bye"
        conversation.writer.write(b"still here")
        conversation.writer.write_eof()
        async with asyncio.timeout(LIMIT_S):
            assert await got == b"still here"


async def test_a_service_that_breaks_off_breaks_the_tunnel(fresh_guest: Client) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with service(reset) as port:
        conversation = await tunnel(fresh_guest, port)
        conversation.writer.write(b"go")
        assert await rest(conversation) == b""
        await until_no_tunnel_is_open(fresh_guest)


async def test_a_client_that_leaves_breaks_the_connection_of_the_service(guest: Client) -> None:
    left = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        with pytest.raises(ConnectionError):
            await reader.read()
        left.set()

    async with service(wait) as port:
        conversation = await tunnel(guest, port)
        conversation.writer.transport.abort()
        async with asyncio.timeout(LIMIT_S):
            await left.wait()


async def test_a_reader_that_stands_still_stops_the_service(guest: Client) -> None:
    """What the guest holds for it is bounded: the service can write no more than buffers on the way hold."""
    sent = 0
    is_stuck = asyncio.Event()

    async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.transport.set_write_buffer_limits(0)
        with contextlib.suppress(TimeoutError):
            while True:
                writer.write(bytes(1 << 16))
                async with asyncio.timeout(2):
                    await writer.drain()
                sent += 1 << 16
        is_stuck.set()
        await writer.drain()

    async with service(flood) as port:
        conversation = await tunnel(guest, port)
        conversation.writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(LIMIT_S):
            await is_stuck.wait()
        assert sent < 32 << 20
        conversation.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await read(conversation, sent) == bytes(sent)


async def test_a_port_where_nobody_listens_is_closed(guest: Client) -> None:
    port = free_port()
    reply = await guest.call("GET", f"/ports/{port}/connect", Connection="Upgrade", Upgrade="tcp")
    assert (reply.status, reply.code) == (502, "port_closed")
    assert str(port) in reply.json["error"]["message"]


async def test_a_refused_tunnel_leaves_the_connection_for_the_next_request(guest: Client) -> None:
    conversation = await guest.connect()
    await conversation.send("GET", "/ports/1/connect", Connection="Upgrade", Upgrade="tcp")
    assert (await conversation.reply()).status == 502
    await conversation.send("GET", "/health")
    assert (await conversation.reply()).status == 200


@pytest.mark.parametrize("port", ["0", "1024", "65536", "99999", "08", "-1", "x", "", "1e3", "%31", "111111111"])
async def test_a_port_that_is_none_or_the_guests_own_is_refused(guest: Client, port: str) -> None:
    reply = await guest.call("GET", f"/ports/{port}/connect", Connection="Upgrade", Upgrade="tcp")
    assert (reply.status, reply.json["error"].get("field")) == (400, "port")


@pytest.mark.parametrize(
    "headers",
    [{}, {"Upgrade": "tcp"}, {"Connection": "Upgrade"}, {"Connection": "Upgrade", "Upgrade": "websocket"}],
)
async def test_without_the_headers_of_an_upgrade_there_is_no_tunnel(guest: Client, headers: dict[str, str]) -> None:
    reply = await guest.call("GET", "/ports/80/connect", **headers)
    assert (reply.status, reply.code) == (400, "bad_request")


async def test_a_request_for_a_tunnel_with_a_body_is_refused(guest: Client) -> None:
    reply = await guest.call("GET", "/ports/80/connect", b"body", Connection="Upgrade", Upgrade="tcp")
    assert (reply.status, reply.code) == (400, "bad_request")


async def test_a_thousand_tunnels_are_open_at_once_and_the_next_is_refused(fresh_guest: Client) -> None:
    async with service(echo) as port:
        opened = [await tunnel(fresh_guest, port) for _ in range(1000)]
        reply = await fresh_guest.call("GET", f"/ports/{port}/connect", Connection="Upgrade", Upgrade="tcp")
        assert (reply.status, reply.code) == (429, "too_many_tunnels")
        for conversation in opened:
            conversation.writer.write(b"ping")
        for conversation in opened:
            assert await read(conversation, 4) == b"ping"
        await fresh_guest.close()
        await until_no_tunnel_is_open(fresh_guest)
        conversation = await tunnel(fresh_guest, port)
        conversation.writer.write(b"again")
        assert await read(conversation, 5) == b"again"


async def test_bytes_of_a_tunnel_are_no_activity_of_a_process(fresh_guest: Client) -> None:
    async with service(echo) as port:
        conversation = await tunnel(fresh_guest, port)
        before = (await fresh_guest.call("GET", "/health")).json["quiet_ms"]
        conversation.writer.write(b"hello")
        await read(conversation, 5)
        assert (await fresh_guest.call("GET", "/health")).json["quiet_ms"] >= before


async def test_a_restored_machine_hangs_up_on_its_tunnels(fresh_guest: Client) -> None:
    identity = {"unix_ns": 1, "entropy": "A" * 44}
    async with service(echo) as port:
        assert (await fresh_guest.call("POST", "/identity", {**identity, "generation": 1})).status == 200
        conversation = await tunnel(fresh_guest, port)
        assert (await fresh_guest.call("POST", "/identity", {**identity, "generation": 2})).status == 200
        with contextlib.suppress(ConnectionError):
            assert await rest(conversation) == b""
        await until_no_tunnel_is_open(fresh_guest)
