"""The client to hosts: every kind of answer, kept connections, flow control, and hosts that break off or lie."""

import asyncio
import socket

import pytest
from flow_hosts import OK, Peer, always, once, scripted_host
from flow_upstreams import asked, upstream_to

from contract.errors import BadField
from gateway.errors import HostBroken, HostUnreachable
from gateway.upstream import Upstream, pool
from tests.ports import free_port

ANSWERS = {
    "with a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello"),
    "in chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
        200,
        b"hello",
    ),
    "with trailers": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n",
        200,
        b"hello",
    ),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\nhello", 200, b"hello"),
    "of HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\nhello", 200, b"hello"),
    "behind others": (b"HTTP/1.1 103 Early\r\nX: y\r\n\r\nHTTP/1.1 100 Go\r\n\r\n" + OK, 200, b"ok"),
    "without a body": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b""),
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
}


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("is_slow", [False, True])
async def test_every_kind_of_answer_is_read(kind: str, is_slow: bool) -> None:
    said, status, body = ANSWERS[kind]
    pieces = [said[i : i + 1] for i in range(len(said))] if is_slow else [said]
    async with scripted_host(once(*pieces)) as host, upstream_to(host.address) as upstream:
        assert await asked(upstream) == (status, body)


async def test_the_answer_to_head_has_a_length_and_no_body() -> None:
    async with (
        scripted_host(always(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")) as host,
        upstream_to(host.address) as upstream,
    ):
        for _ in range(3):
            async with upstream.stream("HEAD", "/x", []) as answer:
                assert (b"content-length", b"500") in answer.headers
                assert [chunk async for chunk in answer.chunks] == []
        assert len(host.peers) == 1


async def test_connections_are_kept_for_the_next_request() -> None:
    async with scripted_host(always(OK)) as host, upstream_to(host.address) as upstream:
        for _ in range(10):
            assert await asked(upstream) == (200, b"ok")
        assert len(host.peers) == 1
        await asyncio.gather(*(asked(upstream) for _ in range(5)))
        assert len(host.peers) <= 5


async def test_a_connection_that_waited_too_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_S", 0.05)

    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.say(OK)
        await peer.until_gone()

    async with scripted_host(talk) as host, upstream_to(host.address) as upstream:
        await asked(upstream)
        await host.peers[0].gone.wait()


async def test_a_host_that_closes_as_we_ask_again_is_asked_on_a_new_connection() -> None:
    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.say(OK)
        if peer.number == 0:
            await peer.head()  # the second request is read, and nothing is said to it

    async with scripted_host(talk) as host, upstream_to(host.address) as upstream:
        assert await asked(upstream) == (200, b"ok")
        assert await asked(upstream) == (200, b"ok")
        assert len(host.peers) == 2


async def test_what_may_not_be_done_twice_is_not_asked_twice() -> None:
    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.say(OK)
        await peer.head()

    async with scripted_host(talk) as host, upstream_to(host.address) as upstream:
        await asked(upstream)
        with pytest.raises(HostUnreachable) as caught:
            await asked(upstream, "POST", b"{}")
        assert caught.value.sent
        assert len(host.peers) == 1


async def test_a_host_that_nobody_can_reach_has_not_heard_us() -> None:
    async with upstream_to(f"http://127.0.0.1:{free_port()}") as upstream:
        with pytest.raises(HostUnreachable) as caught:
            await asked(upstream)
        assert not caught.value.sent


async def taken(upstream: Upstream, got: list[bytes]) -> None:
    async with upstream.stream("GET", "/x", []) as answer:
        async for chunk in answer.chunks:
            got.append(chunk)


BROKEN = {
    "a short body": b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
    "a missing last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "half a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\nhello",
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_an_answer_that_breaks_off_is_never_a_whole_one(kind: str) -> None:
    async with scripted_host(once(BROKEN[kind])) as host, upstream_to(host.address) as upstream:
        got: list[bytes] = []
        with pytest.raises(HostBroken):
            await taken(upstream, got)
        assert b"".join(got) == b"hello"  # what came before the break is not lost


LIES = {
    "not HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "both framings": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "a chunk that is none": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "a long header": b"HTTP/1.1 200 OK\r\nX: " + b"a" * (65 << 10) + b"\r\nContent-Length: 2\r\n\r\nok",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 201 + b"Content-Length: 2\r\n\r\nok",
    "endless headers": b"HTTP/1.1 200 OK\r\n" + b"X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 20_000,
    "endless interim answers": b"HTTP/1.1 100 Go\r\nX: y\r\n\r\n" * 40_000,
    "an endless chunk extension": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;" + b"a" * 1_000_000,
    "endless trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    + b"X: yyyyyyyyyyyyyyy\r\n" * 50_000,
}


@pytest.mark.parametrize("kind", LIES)
async def test_what_is_not_an_answer_is_refused(kind: str) -> None:
    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.say(LIES[kind])
        await peer.until_gone()

    async with scripted_host(talk) as host, upstream_to(host.address) as upstream:
        with pytest.raises(HostBroken):
            await asked(upstream)
        await host.peers[0].gone.wait()


@pytest.mark.parametrize("said", [OK + OK, b"HTTP/1.1 204 No Content\r\n\r\nhello", OK + b"more"])
async def test_what_comes_behind_an_answer_is_never_taken_for_the_next_one(said: bytes) -> None:
    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.say(said if peer.number == 0 else OK)
        await peer.until_gone()

    async with scripted_host(talk) as host, upstream_to(host.address) as upstream:
        await asked(upstream)
        await host.peers[0].gone.wait()
        assert await asked(upstream) == (200, b"ok")
        assert len(host.peers) == 2


async def test_a_silent_host_is_left_at_once_when_the_asker_gives_up() -> None:
    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.until_gone()

    async with scripted_host(talk) as host, upstream_to(host.address) as upstream:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await asked(upstream)
        await host.peers[0].gone.wait()


async def test_leaving_an_answer_early_hangs_up() -> None:
    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.say(b"HTTP/1.1 200 OK\r\n\r\nfirst")
        await peer.until_gone()

    async with scripted_host(talk) as host, upstream_to(host.address) as upstream:
        async with upstream.stream("GET", "/x", []) as answer:
            async for chunk in answer.chunks:
                assert chunk == b"first"
                break
        await host.peers[0].gone.wait()


async def test_a_reader_that_does_not_read_makes_the_host_wait() -> None:
    sent = 0

    async def talk(peer: Peer) -> None:
        nonlocal sent
        await peer.head()
        await peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (256 << 20))
        for _ in range(256):
            await peer.say(bytes(1 << 20))
            sent += 1

    async with (
        scripted_host(talk) as host,
        upstream_to(host.address) as upstream,
        upstream.stream("GET", "/x", []) as answer,
    ):
        before = -1
        while sent != before:  # until the host has not got rid of anything for a while
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 64
        assert sum([len(chunk) async for chunk in answer.chunks]) == 256 << 20


@pytest.mark.parametrize("target", ["x", "/a b", "/a\r\nx: y", "/é", ""])
async def test_a_target_that_would_split_the_request_is_refused(target: str) -> None:
    upstream = Upstream("http://127.0.0.1:1")
    with pytest.raises(BadField):
        upstream.stream("GET", target, [])
    with pytest.raises(BadField):
        upstream.stream("GET", "/", [(b"x", b"a\r\ny: b")])


async def test_json_both_ways() -> None:
    async def talk(peer: Peer) -> None:
        head = await peer.head()
        assert b"warren-ticket: t1" in head
        assert await peer.reader.readexactly(7) == b'{"a":1}'
        await peer.say(b'HTTP/1.1 201 Made\r\ncontent-length: 7\r\nx-a: b\r\n\r\n{"b":2}')

    async with scripted_host(talk) as host, upstream_to(host.address) as upstream:
        status, value, headers = await upstream.call("POST", "/x", ticket="t1", value={"a": 1})
        assert (status, value) == (201, {"b": 2})
        assert (b"x-a", b"b") in headers


@pytest.mark.parametrize("body", [b"{", b"[" + b"1," * (3 << 20) + b"1]"])
async def test_json_that_is_none_or_too_long_is_refused(body: bytes) -> None:
    said = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    async with scripted_host(once(said)) as host, upstream_to(host.address) as upstream:
        with pytest.raises(HostBroken):
            await upstream.call("GET", "/x", ticket="t1")


async def test_http_is_spoken_over_a_socket_that_somebody_made() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=theirs)

    async def connect() -> socket.socket:
        return ours

    async with upstream_to("http://localhost:5173", connect=connect) as upstream:
        asking = asyncio.create_task(asked(upstream))
        assert b"host: localhost:5173" in await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        assert await asking == (200, b"ok")
    writer.close()


async def test_a_tunnel_that_cannot_be_made_is_a_host_that_cannot_be_reached() -> None:
    async def connect() -> socket.socket:
        raise ConnectionRefusedError("no such port")

    async with upstream_to("http://localhost:5173", connect=connect) as upstream:
        with pytest.raises(HostUnreachable) as caught:
            await asked(upstream)
        assert not caught.value.sent


async def test_after_close_nothing_is_open_and_nothing_can_be_asked() -> None:
    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.say(OK)
        await peer.until_gone()

    async with scripted_host(talk) as host:
        upstream = Upstream(host.address)
        await asked(upstream)
        await upstream.close()
        async with asyncio.timeout(5):
            await host.peers[0].gone.wait()
        with pytest.raises(HostUnreachable):
            await asked(upstream)
