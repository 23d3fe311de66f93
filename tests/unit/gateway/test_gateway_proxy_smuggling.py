"""Requests that two could read in two ways, through our server: the host hears one request or none."""

import pytest
from flow_hosts import Peer, Talk
from flow_servers import raw
from test_gateway_proxy import OK, gateway, read_body

HOST = b"Host: a\r\n"
POST = b"POST /first HTTP/1.1\r\n" + HOST
SECOND = b"GET /second HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"

REFUSED = {
    "both lengths": POST + b"Content-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both, the other way round": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 40\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a list of lengths": POST + b"Content-Length: 5, 5\r\n\r\nhello",
    "a signed length": POST + b"Content-Length: +5\r\n\r\nhello",
    "a coding that is not known": POST + b"Transfer-Encoding: gzip\r\n\r\nhello",
    "a coding that is almost chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a folded header": POST + b"X: y\r\n z\r\nContent-Length: 0\r\n\r\n",
    "a zero in a header": POST + b"X: y\0z\r\nContent-Length: 0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST /first HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk without a size": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    "a chunk longer than it says": POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
    "a chunk of too large a size": POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "chunks without returns": POST + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
    "two hosts": b"GET /first HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n",
    "no host": b"GET /first HTTP/1.1\r\nConnection: close\r\n\r\n",
    "a path with bytes that no path has": b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
}


def counting(heard: list[bytes]) -> Talk:
    """A host that answers each request when it has read it."""

    async def talk(peer: Peer) -> None:
        while True:
            head = await peer.head()
            heard.append(head)
            if b"expect: 100" in head:
                await peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
            await read_body(peer, head)
            await peer.say(OK)

    return talk


@pytest.mark.parametrize("kind", REFUSED)
async def test_it_is_refused_and_nothing_behind_it_is_heard(kind: str) -> None:
    heard: list[bytes] = []
    async with gateway(counting(heard)) as (port, _, _):
        got = await raw(port, REFUSED[kind], SECOND)
    assert got.startswith(b"HTTP/1.1 400"), got
    assert not any(b"/second" in head for head in heard)


async def test_a_header_of_a_megabyte_is_refused() -> None:
    heard: list[bytes] = []
    async with gateway(counting(heard)) as (port, _, _):
        got = await raw(port, b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 431")
    assert heard == []
