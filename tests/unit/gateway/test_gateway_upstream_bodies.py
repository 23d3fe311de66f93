"""Bodies that the client sends to hosts: as long as they say, begun when wanted, and no faster than they are read."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from flow_hosts import OK, Peer, once, scripted_host
from flow_upstreams import asked, upstream_to

from contract.errors import BadField


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_a_body_of_unknown_length_is_sent_in_chunks() -> None:
    async def talk(peer: Peer) -> None:
        assert b"transfer-encoding: chunked" in await peer.head()
        assert await peer.reader.readexactly(24) == b"5\r\nhello\r\n4\r\nmore\r\n0\r\n\r\n"
        await peer.say(OK)

    async with scripted_host(talk) as host, upstream_to(host.address) as upstream:
        assert await asked(upstream, "PUT", pieces(b"hello", b"", b"more")) == (200, b"ok")


@pytest.mark.parametrize("said", [b"4", b"6"])
async def test_a_body_that_is_not_as_long_as_it_says_hangs_up(said: bytes) -> None:
    read = b""

    async def talk(peer: Peer) -> None:
        nonlocal read
        await peer.head()
        read = await peer.reader.read()

    async with scripted_host(talk) as host, upstream_to(host.address) as upstream:
        with pytest.raises(BadField):
            async with upstream.stream("PUT", "/x", [(b"content-length", said)], pieces(b"hel", b"lo")):
                pass
    assert len(read) <= int(said)


async def test_an_answer_may_come_before_the_body_is_through() -> None:
    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.say(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await peer.until_gone()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(65536)
            await asyncio.sleep(0)

    async with scripted_host(talk) as host, upstream_to(host.address) as upstream:
        assert await asked(upstream, "PUT", endless()) == (413, b"no")
        await host.peers[0].gone.wait()


async def test_a_host_that_does_not_read_makes_the_sender_wait() -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield bytes(1 << 20)

    async def talk(peer: Peer) -> None:
        await peer.head()
        await asyncio.Event().wait()

    async with scripted_host(talk) as host, upstream_to(host.address) as upstream:
        asking = asyncio.create_task(asked(upstream, "PUT", endless()))
        before = -1
        while taken != before or taken == 0:
            before = taken
            await asyncio.sleep(0.2)
        assert taken < 64
        asking.cancel()
        await asyncio.wait([asking])


async def test_what_a_body_raises_reaches_the_asker_and_the_host_is_left() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise BadField("body", "", "is broken")

    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.until_gone()

    async with scripted_host(talk) as host, upstream_to(host.address) as upstream:
        with pytest.raises(BadField):
            await asked(upstream, "PUT", broken())
        await host.peers[0].gone.wait()


async def test_a_body_waits_until_the_host_wants_it() -> None:
    async def talk(peer: Peer) -> None:
        assert b"expect: 100-continue" in await peer.head()
        await peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await peer.reader.readexactly(10) == b"5\r\nhello\r\n"
        await peer.say(OK)

    async with (
        scripted_host(talk) as host,
        upstream_to(host.address) as upstream,
        upstream.stream("PUT", "/x", [], pieces(b"hello"), waits=True) as answer,
    ):
        assert answer.status == 200


async def test_a_body_that_the_host_does_not_want_is_not_begun() -> None:
    begun = False

    async def body() -> AsyncIterator[bytes]:
        nonlocal begun
        begun = True
        yield b"hello"

    async with (
        scripted_host(once(b"HTTP/1.1 404 No\r\ncontent-length: 2\r\n\r\nno")) as host,
        upstream_to(host.address) as upstream,
        upstream.stream("PUT", "/x", [], body(), waits=True) as answer,
    ):
        assert answer.status == 404
        assert [chunk async for chunk in answer.chunks] == [b"no"]
    assert not begun
