"""The gateway's HTTP server: requests in, replies out, and what it does with clients that do neither properly."""

import asyncio
import contextlib
from typing import Any

import pytest
from flow_servers import raw, serving

from gateway.server import connection, exchange

GET = b"GET /a%20b?c=d HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def body_of(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body + b" (left)"
        body += message["body"]
        more = message["more_body"]
    return body


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Says what it was asked, with a length."""
    said = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} ".encode() + await body_of(receive)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})


async def in_pieces(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for piece in (b"one ", b"", b"two "):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"three"})


def replies(said: bytes) -> list[bytes]:
    return said.split(b"HTTP/1.1 ")[1:]


async def test_what_is_asked_again_with_the_same_bytes_is_answered_the_same() -> None:
    async with serving(echo) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        for _ in range(3):
            writer.write(GET)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"\r\ndate: " in head
            assert await reader.readexactly(len(b"GET /a b c=d ")) == b"GET /a b c=d "
        assert list(served.server.known) == [GET]
        writer.close()


async def test_what_another_has_asked_has_the_next_ones_address() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["client"])
        scope["mine"] = True
        await echo(scope, receive, send)

    async with serving(app) as served:
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(GET)
            await reader.readuntil(b"\r\n\r\n")
            assert seen[-1] == writer.get_extra_info("sockname")
            writer.close()
        assert "mine" not in served.server.known[GET].scope


@pytest.mark.parametrize("rest", [b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b"\0\r\n\r\n"])
async def test_only_what_was_one_whole_request_is_remembered(rest: bytes) -> None:
    async with serving(echo) as served:
        said = await raw(served.port, GET + b"GET /w HTTP/1.1\r\nHost: x\r\n" + rest)
        assert not served.server.known
    assert [each[:3] for each in replies(said)] == [b"200", b"400"]


async def test_requests_at_once_are_answered_in_their_order() -> None:
    post = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
    async with serving(echo) as served:
        said = await raw(served.port, GET + post + GET + LAST)
    assert [each.rpartition(b"\r\n\r\n")[2] for each in replies(said)] == [
        b"GET /a b c=d ", b"POST /p  hi", b"GET /a b c=d ", b"GET /last  ",
    ]  # fmt: skip


async def test_a_request_may_come_byte_by_byte() -> None:
    chunked = b"PUT /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1\r\n!\r\n0\r\n\r\n"
    async with serving(echo) as served:
        said = await raw(served.port, *(bytes([byte]) for byte in chunked + LAST))
    assert replies(said)[0].endswith(b"PUT /x  hi!")
    assert replies(said)[1].endswith(b"GET /last  ")


async def test_a_reply_without_a_length_comes_in_chunks_and_to_old_clients_until_the_end() -> None:
    async with serving(in_pieces) as served:
        said = await raw(served.port, LAST)
        assert b"transfer-encoding: chunked" in said
        assert said.endswith(b"\r\n\r\n4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n")
        said = await raw(served.port, b"GET / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
        assert b"chunked" not in said
        assert said.endswith(b"connection: close\r\n\r\none two three")


async def test_a_head_has_no_body_and_the_next_reply_follows() -> None:
    async with serving(echo) as served:
        said = await raw(served.port, b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n" + LAST)
    assert b"content-length: 8\r\n" in replies(said)[0]
    assert replies(said)[0].endswith(b"\r\n\r\n")
    assert replies(said)[1].endswith(b"GET /last  ")


async def test_a_client_that_waits_for_a_word_is_told_to_go_on() -> None:
    async with serving(echo) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_an_application_that_says_too_little_or_nothing_is_no_proper_end() -> None:
    async def half(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/nothing":
            raise RuntimeError("broken")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"hello", "more_body": scope["path"] != "/said"})

    async with serving(half) as served:
        assert (await raw(served.port, b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 500")
        for path in (b"/cut", b"/said"):
            said = await raw(served.port, b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path + LAST)
            assert not said.endswith(b"helloworld")
            assert len(replies(said)) <= 1


async def test_a_client_that_leaves_is_seen_by_who_answers() -> None:
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert await body_of(receive) == b""
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": []})  # to nobody
        left.set()

    async with serving(app) as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(GET)
        await writer.drain()
        writer.transport.abort()
        await left.wait()


async def test_a_body_waits_for_whoever_reads_it() -> None:
    go_on = asyncio.Event()
    size = 32 << 20

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await go_on.wait()
        length = len(await body_of(receive))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-length", b"%d" % length)]})
        await send({"type": "http.response.body", "body": b""})

    async with serving(app) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
        await asyncio.sleep(0.3)
        assert writer.transport.get_write_buffer_size() > size // 2  # it was not taken
        go_on.set()
        assert b"x-length: %d\r\n" % size in await reader.readuntil(b"\r\n\r\n")
        writer.close()


@pytest.mark.parametrize("app", [echo, in_pieces], ids=["read", "unread"])
async def test_behind_a_body_that_waited_whole_the_next_request_is_heard(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "BODY_HIGH_WATER", 10)
    async with serving(app) as served, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        for _ in range(2):
            writer.write(b"PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n" + b"y" * 50)
            await reader.readuntil(b"y" if app is echo else b"three")
        writer.write(LAST)
        assert b"200 OK" in await reader.read()
        writer.close()


async def test_a_reply_waits_for_a_client_that_does_not_read() -> None:
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(512):
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
            sent += 65536
        await send({"type": "http.response.body", "body": b""})

    async with serving(app) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=65536)
        writer.write(LAST)
        await reader.readuntil(b"\r\n\r\n")
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 24 << 20
        while await reader.read(1 << 20):
            pass
        assert sent == 32 << 20
        writer.close()


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        (b"this is no request\r\n\r\n", 400, "bad_framing"),
        (b"GET http://y/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_framing"),
        (b"GET x:/// HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_framing"),
        (b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "bad_framing"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 201 + b"\r\n", 431, "head_too_large"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "head_too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 300_000, 431, "head_too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", 400, "bad_framing"),
    ],
)
async def test_what_is_no_request_is_refused_and_told(given: bytes, status: int, code: str) -> None:
    async with serving(echo) as served:
        said = await raw(served.port, given)
        assert served.codes == [code]
    assert said.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close\r\n" in said
    assert said.endswith(code.encode())


async def test_an_address_in_place_of_a_path_is_taken_if_it_is_of_this_host() -> None:
    async with serving(echo) as served:
        said = await raw(served.port, b"GET http://x:80/p?q HTTP/1.1\r\nHost: X:80\r\nConnection: close\r\n\r\n")
    assert said.endswith(b"GET /p q ")


async def test_what_is_no_request_waits_for_the_replies_before_it() -> None:
    async with serving(echo) as served:
        said = await raw(served.port, GET + b"and now nonsense\r\n\r\n")
    assert [each[:3] for each in replies(said)] == [b"200", b"400"]


async def test_a_body_that_is_broken_looks_to_who_answers_like_a_client_that_left() -> None:
    async with serving(echo) as served:
        said = await raw(served.port, b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + GET)
        assert served.codes == ["bad_framing"]
    assert len(replies(said)) == 1
    assert said.endswith(b"PUT /   (left)")


@pytest.mark.parametrize("begun", [b"0\r\nx: ", b"2\r\nhi\r\n0\r\n" + b"x: y\r\n" * 20_000, b"1;x="])
async def test_what_is_in_a_body_and_not_of_it_has_a_limit(begun: bytes) -> None:
    asked = b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(echo) as served:
        said = await raw(served.port, asked, begun, *[b"a" * 65536] * 16)
        assert served.codes == ["head_too_large"]
    assert said.endswith(b" (left)")


async def test_a_long_body_with_trailers_is_no_long_head() -> None:
    asked = b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [b"%x\r\n" % (1 << 20), *[b"b" * 65536] * 16, b"\r\n", *[b"1\r\nc\r\n" * 20_000] * 2]
    trailers = [b"0\r\n", *[b"x: " + b"y" * 10_000 + b"\r\n"] * 6, b"\r\n"]
    async with serving(echo) as served:
        said = await raw(
            served.port, asked, *chunks, *trailers, b"GET / HTTP/1.1\r\n", b"X: " + b"z" * 10_000, b"\r\n\r\n"
        )
        assert served.codes == []
    assert [len(each) > (1 << 20) + 40_000 for each in replies(said)] == [True, False]


async def test_more_requests_at_once_than_anybody_needs_are_refused() -> None:
    async with serving(echo) as served:
        said = await raw(served.port, GET * 1000)
        assert served.codes == ["bad_framing"]
    assert len(replies(said)) == connection.MAX_WAITING + 2  # one that is answered, those behind it, and the refusal


async def test_who_is_refused_in_the_middle_of_a_body_hears_it_and_what_follows_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"no"})

    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    async with serving(refuse) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + bytes(1000))
        assert (await reader.read()).endswith(b"\r\n\r\nno")
        writer.write(bytes(1000) + GET)  # it is read for a moment, and then nobody is there
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()


async def test_a_head_that_does_not_end_and_a_client_that_says_nothing_are_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.5)
    monkeypatch.setattr(connection, "IDLE_S", 0.5)
    async with serving(echo) as served:
        assert (await raw(served.port, b"GET / HTTP/1.1\r\nHo")).startswith(b"HTTP/1.1 408")
        assert served.codes == ["slow_head"]
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        assert await reader.read() == b""
        writer.close()
        assert (await raw(served.port, GET)).endswith(b"GET /a b c=d ")  # and then it was let go


async def test_a_protocol_that_we_do_not_speak_is_not_spoken() -> None:
    asked = b"GET /h2 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    async with serving(echo) as served:
        said = await raw(served.port, asked + LAST)
    assert [each.rpartition(b"\r\n\r\n")[2] for each in replies(said)] == [b"GET /h2  ", b"GET /last  "]


async def test_what_is_under_way_at_the_end_is_finished_and_the_idle_are_let_go() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await go_on.wait()
        await echo(scope, receive, send)

    async with serving(app) as served:
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", served.port)
        asking = asyncio.create_task(raw(served.port, GET))
        await begun.wait()
        closing = asyncio.create_task(served.server.close(5.0))
        assert await idle.read() == b""
        go_on.set()
        await closing
        assert (await asking).endswith(b"GET /a b c=d ")
        idle_writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", served.port)


async def test_a_reply_cannot_be_made_into_two() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"a\r\n\r\nHTTP/1.1 200 OK")]})

    async with serving(app) as served:
        assert (await raw(served.port, GET)).startswith(b"HTTP/1.1 500")
