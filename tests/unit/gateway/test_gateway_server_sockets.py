"""WebSockets of the gateway's server: messages both ways, and ends that are told apart."""

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from flow_servers import served
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode


async def talk(scope: Any, receive: Any, send: Any) -> None:
    """Says every message back; "bye" ends it, "gone" leaves without a word."""
    assert (await receive())["type"] == "websocket.connect"
    if scope["path"] == "/refused":
        await send({"type": "websocket.http.response.start", "status": 409, "headers": [(b"x-why", b"full")]})
        await send({"type": "websocket.http.response.body", "body": b"no"})
        return
    await send({"type": "websocket.accept", "subprotocol": (scope["subprotocols"] or [None])[-1]})
    while (message := await receive())["type"] == "websocket.receive":
        if message.get("text") == "gone":
            return
        if message.get("text") == "bye":
            await send({"type": "websocket.close", "code": 4001, "reason": "bye"})
            return
        await send({**message, "type": "websocket.send"})


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with served(talk) as port:
        yield f"ws://127.0.0.1:{port}/"


async def test_text_stays_text_and_bytes_stay_bytes(url: str) -> None:
    async with connect(url, subprotocols=["a", "b"], proxy=None) as client:  # type: ignore[list-item]
        assert client.subprotocol == "b"
        for said in ("häh?", b"\0\xff", "", b"", b"x" * (1 << 20)):
            await client.send(said)
            assert await client.recv() == said
        await client.send(["in ", "several ", "pieces"])
        assert await client.recv() == "in several pieces"
        await (await client.ping())


async def test_each_end_is_told_as_what_it_is(url: str) -> None:
    for said, code in (("bye", 4001), ("gone", 1011)):
        async with connect(url, proxy=None) as client:
            await client.send(said)
            with pytest.raises(ConnectionClosed) as ended:
                await client.recv()
            assert ended.value.rcvd is not None
            assert ended.value.rcvd.code == code


async def test_a_refusal_is_an_answer_in_http(url: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"{url}refused", proxy=None)
    assert refused.value.response.status_code == 409
    assert refused.value.response.headers["x-why"] == "full"
    assert refused.value.response.body == b"no"


async def test_text_that_is_none_and_messages_without_end_are_refused(url: str) -> None:
    async with connect(url, proxy=None) as client:
        client.protocol.send_frame(Frame(Opcode.TEXT, b"\xff\xfe"))
        client.send_data()
        with pytest.raises(ConnectionClosed) as ended:
            await client.recv()
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 1007
    async with connect(url, proxy=None) as client:
        with contextlib.suppress(ConnectionClosed):  # it may hang up before all is sent
            await client.send(bytes(17 << 20))
        with pytest.raises(ConnectionClosed) as ended:
            await client.recv()
        assert ended.value.rcvd is None or ended.value.rcvd.code == 1009


async def test_a_message_in_endless_empty_pieces_costs_no_memory(url: str) -> None:
    """For each of them a list would grow by a pointer, which no limit of a message's size sees."""
    count = 20_000
    empty = Frame(Opcode.CONT, b"", fin=False).serialize(mask=True)
    async with connect(url, proxy=None) as client:
        client.protocol.send_frame(Frame(Opcode.TEXT, b"in ", fin=False))
        client.send_data()
        await (await client.ping())
        tracemalloc.start()
        try:
            for _ in range(10):
                client.transport.write(empty * (count // 10))
                await (await client.ping())  # its answer is behind all of that
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        client.protocol.send_frame(Frame(Opcode.CONT, b"pieces"))
        client.send_data()
        assert await client.recv() == "in pieces"
    assert held < count, f"{held} bytes are held for {count} empty pieces"


async def test_a_client_that_asks_and_does_not_read_is_not_heard_further(url: str) -> None:
    """Answers to its pings would wait for it without end."""
    ping = Frame(Opcode.PING, bytes(125)).serialize(mask=True)
    async with connect(url, proxy=None) as client:
        client.transport.pause_reading()
        client.transport.write(ping * 150_000)  # 20 MB: more than all buffers between the two
        before = -1
        while before != (before := client.transport.get_write_buffer_size()):
            await asyncio.sleep(0.3)
        assert before, "all of it was heard"
        client.transport.resume_reading()
        await client.send("still there")
        assert await client.recv() == "still there"


async def test_a_client_that_does_not_read_makes_whoever_sends_wait() -> None:
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await receive()
        await send({"type": "websocket.accept"})
        for _ in range(400):
            await send({"type": "websocket.send", "bytes": bytes(65536)})
            sent += 1

    async with served(app) as port, connect(f"ws://127.0.0.1:{port}/", max_queue=1, proxy=None) as client:
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 300
        for _ in range(400):
            assert len(await client.recv()) == 65536
