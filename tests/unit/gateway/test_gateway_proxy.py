"""Requests through our server to a host and back: headers, bodies, and whoever leaves first."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from flow_hosts import OK, Peer, Scripted, Talk, always, once, scripted_host
from flow_servers import raw, served

from contract.errors import NotMine, WarrenError
from gateway import client_body
from gateway.headers import asked_headers, target_of
from gateway.proxy import forward
from gateway.upstream import Upstream

END = b"Host: gw.example\r\nConnection: close\r\n\r\n"


class Gateway:
    """Passes everything to hosts, in turn while they say that it is not theirs."""

    def __init__(self, upstreams: list[Upstream], **options: Any) -> None:
        self.upstreams = upstreams
        self.options = options
        self.statuses: asyncio.Queue[int] = asyncio.Queue()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            status = await self._ask(scope, receive, send)
        except WarrenError as error:
            status = error.status
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": orjson.dumps(error.body()), "more_body": False})
        self.statuses.put_nowait(status)

    async def _ask(self, scope: Any, receive: Any, send: Any) -> int:
        options = dict(self.options)
        if options.pop("keep_credentials", False):
            options["asked"] = asked_headers(scope, scope["headers"], keep_credentials=True)
        for upstream in self.upstreams:
            with contextlib.suppress(NotMine):
                return await forward(scope, receive, send, upstream, target_of(scope), "t-1", "r-1", **options)
        raise NotMine("nobody has it")


@contextlib.asynccontextmanager
async def gateway(*talks: Talk, **options: Any) -> AsyncIterator[tuple[int, Gateway, list[Scripted]]]:
    """A gateway's port in front of hosts that say what they are told to."""
    async with contextlib.AsyncExitStack() as stack:
        hosts = [await stack.enter_async_context(scripted_host(talk)) for talk in talks]
        app = Gateway([Upstream(host.address) for host in hosts], **options)
        for upstream in app.upstreams:
            stack.push_async_callback(upstream.close)
        yield await stack.enter_async_context(served(app)), app, hosts


def remembering(heads: list[bytes]) -> Talk:
    async def talk(peer: Peer) -> None:
        while True:
            heads.append(await peer.head())
            await peer.say(OK)

    return talk


async def test_a_client_cannot_say_what_only_we_may_say() -> None:
    heads: list[bytes] = []
    lies = (
        b"GET /a%20b?c=d HTTP/1.1\r\nHost: gw.example\r\nWarren-Ticket: forged\r\nWarren-Owner: root\r\n"
        b"X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: gopher\r\nX-Forwarded-Host: evil\r\nForwarded: for=9.9.9.9\r\n"
        b"X-Real-IP: 9.9.9.9\r\nX-Request-Id: mine\r\nAuthorization: Bearer wrn_secret\r\nX-API-Key: secret\r\n"
        b"Cookie: a=b\r\nTE: trailers\r\nConnection: close, X-Named\r\nX-Named: x\r\nKeep-Alive: 5\r\nUpgrade: h2c\r\n"
        b"Proxy-Authorization: secret\r\nX-Kept: yes\r\n\r\n"
    )
    async with gateway(remembering(heads)) as (port, _, hosts):
        assert (await raw(port, lies)).startswith(b"HTTP/1.1 200")
        lines = heads[0].decode().lower().split("\r\n")
        assert lines[0] == "get /a%20b?c=d http/1.1"
        assert sorted(line for line in lines[1:] if line) == sorted(
            [
                f"host: {hosts[0].address.removeprefix('http://')}",
                "warren-ticket: t-1",
                "x-forwarded-for: 127.0.0.1",
                "x-forwarded-proto: http",
                "x-forwarded-host: gw.example",
                "x-request-id: r-1",
                "x-kept: yes",
            ]
        )


async def test_a_preview_keeps_what_is_the_users_own() -> None:
    heads: list[bytes] = []
    asked = b"GET / HTTP/1.1\r\nCookie: a=b\r\nAuthorization: Basic x\r\nWarren-Ticket: forged\r\n" + END
    async with gateway(remembering(heads), keep_credentials=True) as (port, _, _):
        await raw(port, asked)
    assert b"cookie: a=b" in heads[0]
    assert b"authorization: Basic x" in heads[0]
    assert b"forged" not in heads[0]


async def test_what_belongs_to_the_hosts_connection_does_not_reach_the_client() -> None:
    said = (
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Named\r\nKeep-Alive: 5\r\nX-Named: x\r\nWarren-Secret: s\r\n"
        b"X-Request-Id: theirs\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\nContent-Length: 2\r\n\r\nok"
    )
    async with gateway(always(said)) as (port, _, _):
        got = (await raw(port, b"GET / HTTP/1.1\r\n" + END)).lower()
    assert b"x-named" not in got
    assert b"warren-" not in got
    assert b"keep-alive" not in got
    assert b"x-request-id" not in got  # whoever replies says our own
    assert got.count(b"set-cookie") == 2


async def test_head_has_the_length_that_get_would_have() -> None:
    async with gateway(always(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")) as (port, _, _):
        got = await raw(port, b"HEAD / HTTP/1.1\r\n" + END)
    assert b"content-length: 500" in got
    assert got.endswith(b"\r\n\r\n")


CUTS = {
    "with a length": b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello",
    "in chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "of events": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
}


@pytest.mark.parametrize("kind", CUTS)
async def test_a_host_that_breaks_off_breaks_the_clients_stream(kind: str) -> None:
    async with gateway(once(CUTS[kind])) as (port, _, _):
        got = await raw(port, b"GET / HTTP/1.1\r\n" + END)
        assert b"hello" in got
        assert not got.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("version", ["--http1.1", "--http1.0"])
@pytest.mark.parametrize("kind", CUTS)
async def test_curl_calls_a_broken_stream_broken(kind: str, version: str) -> None:
    async with gateway(once(CUTS[kind])) as (port, _, _):
        argv = ["curl", "-sS", version, "--noproxy", "*", f"http://127.0.0.1:{port}/"]
        curl = await asyncio.create_subprocess_exec(*argv, stdout=-1, stderr=-1)
        out, problem = await curl.communicate()
        assert b"hello".startswith(out)  # a reset overtakes what was sent just before
        assert curl.returncode in {18, 56}, problem  # less than was said, or reset


async def test_events_arrive_when_they_are_sent() -> None:
    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        await peer.say(b"data: one\n\n")
        await peer.until_gone()

    async with gateway(talk) as (port, app, hosts):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"data: one\n\n")  # the host has not ended its answer, and never does
        writer.close()
        await hosts[0].peers[0].gone.wait()
        assert await app.statuses.get() in (200, 499)


async def test_a_client_that_leaves_ends_the_hosts_request() -> None:
    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.until_gone()

    async with gateway(talk) as (port, app, hosts):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        while not hosts[0].peers:
            await asyncio.sleep(0.01)
        writer.close()
        await hosts[0].peers[0].gone.wait()
        assert await app.statuses.get() == 499


async def test_a_client_that_leaves_behind_its_body_ends_the_hosts_request() -> None:
    read = asyncio.Event()

    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
        await peer.reader.readexactly(100_000)
        read.set()
        await peer.until_gone()

    async with gateway(talk) as (port, app, hosts):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000))
        await read.wait()
        writer.close()
        await hosts[0].peers[0].gone.wait()
        assert await app.statuses.get() == 499


async def test_a_client_that_leaves_in_its_body_ends_the_hosts_request() -> None:
    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
        await peer.until_gone()

    async with gateway(talk) as (port, app, hosts):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n" + bytes(100_000))
        await writer.drain()
        while not hosts[0].peers:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        await hosts[0].peers[0].gone.wait()
        assert await app.statuses.get() == 400


@pytest.mark.parametrize("size", [0, 5, 60_000, 3_000_000])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_reaches_the_host_as_it_was_sent(size: int, is_chunked: bool) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    got: list[bytes] = []

    async def talk(peer: Peer) -> None:
        head = await peer.head()
        if b"expect: 100" in head:
            await peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
        got.append(await read_body(peer, head))
        await peer.say(OK)

    if is_chunked:
        parts = [body[i : i + 50_000] for i in range(0, len(body), 50_000)]
        sent = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        framing = b"Transfer-Encoding: chunked\r\n"
    else:
        sent, framing = body, b"Content-Length: %d\r\n" % size
    async with gateway(talk) as (port, _, _):
        assert (await raw(port, b"PUT / HTTP/1.1\r\n" + framing + END, sent)).startswith(b"HTTP/1.1 200")
    assert got == [body]


async def read_body(peer: Peer, head: bytes) -> bytes:
    if b"transfer-encoding: chunked" not in head:
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
        return await peer.reader.readexactly(length)
    body = b""
    while size := int(await peer.reader.readline(), 16):
        body += (await peer.reader.readexactly(size + 2))[:-2]
    await peer.reader.readline()
    return body


def not_mine(heads: list[bytes]) -> Talk:
    async def talk(peer: Peer) -> None:
        while True:
            heads.append(await peer.head())
            await peer.say(b"HTTP/1.1 404 Not Found\r\nWarren-Not-Mine: 1\r\nContent-Length: 2\r\n\r\nno")

    return talk


@pytest.mark.parametrize("size", [0, 5, 3_000_000])
async def test_the_next_host_gets_the_whole_request_when_it_is_not_the_firsts(size: int) -> None:
    first: list[bytes] = []
    got: list[bytes] = []

    async def talk(peer: Peer) -> None:
        head = await peer.head()
        if b"expect: 100" in head:
            await peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
        got.append(await read_body(peer, head))
        await peer.say(OK)

    body = b"x" * size
    asked = b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n" % size + END
    async with gateway(not_mine(first), not_mine(first), talk) as (port, _, _):
        assert (await raw(port, asked, body)).startswith(b"HTTP/1.1 200")
    assert len(first) == 2
    assert got == [body]


async def test_a_404_of_the_sandbox_itself_is_passed_on() -> None:
    async with gateway(always(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope")) as (port, _, _):
        got = await raw(port, b"GET / HTTP/1.1\r\n" + END)
    assert got.startswith(b"HTTP/1.1 404")
    assert got.endswith(b"nope")


async def test_a_host_that_does_not_begin_to_answer_in_time_is_given_up() -> None:
    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.until_gone()

    async with gateway(talk, answer_s=0.1) as (port, _, hosts):
        got = await raw(port, b"GET / HTTP/1.1\r\n" + END)
        assert got.startswith(b"HTTP/1.1 504")
        assert b"host_slow" in got
        await hosts[0].peers[0].gone.wait()


async def test_an_answer_that_has_begun_may_take_its_time() -> None:
    async def talk(peer: Peer) -> None:
        await peer.head()
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
        await asyncio.sleep(0.5)
        await peer.say(b"k")

    async with gateway(talk, answer_s=0.1) as (port, _, _):
        assert (await raw(port, b"GET / HTTP/1.1\r\n" + END)).endswith(b"ok")


async def test_a_client_that_stops_in_its_body_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_body, "SILENCE_S", 0.1)
    async with gateway(always(OK)) as (port, _, _):
        got = await raw(port, b"PUT / HTTP/1.1\r\nContent-Length: 5\r\n" + END, b"he")
    assert got.startswith(b"HTTP/1.1 408")


async def test_a_client_that_does_not_read_makes_the_host_wait() -> None:
    sent = 0

    async def talk(peer: Peer) -> None:
        nonlocal sent
        await peer.head()
        await peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (256 << 20))
        for _ in range(256):
            await peer.say(bytes(1 << 20))
            sent += 1

    async with gateway(talk) as (port, _, _):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        before = -1
        while sent != before or sent == 0:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 64
        writer.transport.abort()
