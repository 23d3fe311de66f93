"""Plain HTTP through the proxy: each request read, decided and written anew; answers followed to their end."""

import asyncio

import pytest
from egress_world import OTHER, Poold, Web, World, echo, hosts

from contract.network import HostRule
from poold.egress.policy import Level, Policy

SMALL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def get(path: str = "/", host: str = "allowed.example", more: str = "") -> bytes:
    return f"GET http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


async def test_a_request_is_written_anew(world: World, poold: Poold) -> None:
    web = Web()
    await world.serve(web)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(
        b"GET http://ALLOWED.example:80/a?b=c HTTP/1.1\r\nhost: allowed.example\r\nAccept: x\r\n"
        b"Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\nConnection: X-Mine, keep-alive\r\n"
        b"X-Mine: 1\r\nTE: trailers\r\nKeep-Alive: 5\r\nX-Other:  2 \r\n\r\n"
    )
    assert await client.answer() == (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"ok")
    assert web.heads == [b"GET /a?b=c HTTP/1.1\r\nHost: allowed.example\r\nAccept: x\r\nX-Other: 2\r\n\r\n"]


async def test_requests_follow_each_other_each_decided_anew(world: World, poold: Poold) -> None:
    one, two = Web(), Web()
    await world.serve(one)
    await world.serve(two, OTHER)
    await poold.rule(hosts("allowed.example", "other.example"))
    client = await world.explicit()
    await client.send(get("/1") + get("/2") + get("/3", "other.example") + get("/4", "denied.example") + get("/5"))
    for _ in range(3):
        assert (await client.answer())[1] == b"ok"
    assert b"why=policy" in await client.rest()
    assert (one.connections, two.connections) == (1, 1)
    assert [head.split()[1] for head in one.heads + two.heads] == [b"/1", b"/2", b"/3"]
    first = await poold.row(verdict="allowed", via="http", name="allowed.example", down=2 * len(SMALL))
    assert first["up"] == sum(map(len, one.heads))
    await poold.row(verdict="allowed", via="http", name="other.example")
    await poold.row(verdict="refused", via="http", name="denied.example", why="policy")


async def test_methods_and_paths_are_decided(world: World, poold: Poold) -> None:
    web = Web()
    await world.serve(web)
    await poold.rule(
        Policy(levels=(Level("sandbox", hosts=(HostRule("allowed.example", (80,), ("GET",), ("/ok*",)),)),))
    )
    client = await world.explicit()
    await client.send(get("/ok/1"))
    assert (await client.answer())[1] == b"ok"
    await client.send(get("/ok/../secret"))
    assert b"why=policy" in await client.rest()
    client = await world.explicit()
    await client.send(b"POST http://allowed.example/ok HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 1\r\n\r\nx")
    assert b"why=policy" in await client.rest()
    assert len(web.heads) == 1


@pytest.mark.parametrize(
    "body",
    [
        (b"Content-Length: 5\r\n", b"hello"),
        (b"Transfer-Encoding: chunked\r\n", b"2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: x\r\n\r\n"),
        (b"transfer-encoding: Chunked\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
    ],
)
async def test_bodies_arrive_and_another_request_follows(world: World, poold: Poold, body: tuple[bytes, bytes]) -> None:
    web = Web()
    await world.serve(web)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    head = b"POST http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n"
    for _ in range(2):
        for byte in head + body[0] + b"\r\n" + body[1]:
            client.writer.write(bytes([byte]))
        assert (await client.answer())[1] == b"ok"
    assert web.bodies == [b"hello", b"hello"]
    assert b"Trailer" not in b"".join(web.heads)
    assert web.connections == 1


ANSWERS = [
    SMALL,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nok\r\n0\r\nX: y\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
]


@pytest.mark.parametrize("answer", ANSWERS)
async def test_the_end_of_every_answer_is_known_and_the_connection_kept(
    world: World, poold: Poold, answer: bytes
) -> None:
    web = Web(answer)
    await world.serve(web)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    for _ in range(3):
        await client.send(get())
        assert await client.read(len(answer)) == answer
    assert web.connections == 1


UNCLEAR = [
    b"HTTP/1.1 200 OK\r\n\r\nuntil close",
    b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n",
    b"this is no HTTP",
    b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    SMALL + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison",
]


@pytest.mark.parametrize("answer", UNCLEAR)
async def test_after_an_answer_whose_end_is_not_clear_nothing_follows(
    world: World, poold: Poold, answer: bytes
) -> None:
    web = Web(answer, closes=True)
    other = Web()
    await world.serve(web)
    await world.serve(other, OTHER)
    await poold.rule(hosts("allowed.example", "other.example"))
    client = await world.explicit()
    await client.send(get() + get(host="other.example"))
    got = await client.rest()
    assert got == answer or (answer.startswith(SMALL) and got == SMALL)
    assert other.heads == []


async def test_a_head_has_no_body(world: World, poold: Poold) -> None:
    web = Web(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    await world.serve(web)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    for _ in range(2):
        await client.send(b"HEAD http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
        assert await client.until(b"\r\n\r\n") == web.answer
    assert web.connections == 1


async def test_clients_of_http_1_0_get_what_they_can_read(world: World, poold: Poold) -> None:
    web = Web(b"HTTP/1.0 200 OK\r\n\r\nhello", closes=True)
    await world.serve(web)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(b"GET http://allowed.example/ HTTP/1.0\r\n\r\n")
    assert await client.rest() == web.answer
    assert web.heads == [b"GET / HTTP/1.0\r\nHost: allowed.example\r\nConnection: close\r\n\r\n"]


async def test_who_says_close_is_closed(world: World, poold: Poold) -> None:
    await world.serve(Web())
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(get(more="Connection: close\r\n"))
    assert await client.rest() == SMALL


async def test_a_body_waits_until_it_is_wanted(world: World, poold: Poold) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue\r\n" in head
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(5) == b"hello"
        writer.write(SMALL)

    await world.serve(server)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(
        b"PUT http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 5\r\n"
        b"Expect: 100-continue\r\n\r\n"
    )
    assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(b"hello")
    assert (await client.answer())[1] == b"ok"


async def test_an_answer_before_the_end_of_the_body_ends_the_connection(world: World, poold: Poold) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SMALL)
        await reader.read()

    await world.serve(server)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(b"PUT http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 50\r\n\r\nhe")
    assert (await client.rest()).startswith(SMALL)


async def test_a_websocket_is_a_tunnel_after_101(world: World, poold: Poold) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n" in head
        assert b"Sec-WebSocket-Key: x\r\n" in head
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nfirst")
        await echo(reader, writer)

    await world.serve(server)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(get(more="Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n"))
    assert (await client.until(b"first")).startswith(b"HTTP/1.1 101")
    await client.send(b"\x81\x00GET / HTTP/1.1\r\n\r\n")
    assert await client.read(20) == b"\x81\x00GET / HTTP/1.1\r\n\r\n"
    client.writer.write_eof()
    assert await client.rest() == b""
    await poold.row(verdict="allowed", via="http", name="allowed.example")


async def test_another_upgrade_is_not_passed_on(world: World, poold: Poold) -> None:
    web = Web()
    await world.serve(web)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(get(more="Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n"))
    assert (await client.answer())[1] == b"ok"
    assert b"pgrade" not in web.heads[0]


async def test_a_kept_connection_that_the_server_has_closed_is_dialled_again(world: World, poold: Poold) -> None:
    web = Web(closes=True)
    await world.serve(web)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    for _ in range(4):
        await client.send(get())
        assert (await client.answer())[1] == b"ok"
    client.writer.close()
    for _ in range(4):
        await poold.row(verdict="allowed", down=len(SMALL))
    assert web.connections == 4


async def test_a_server_that_says_nothing_is_a_502(world: World, poold: Poold) -> None:
    async def server(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    await world.serve(server)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(get())
    assert b"502 Bad Gateway" in await client.rest()


async def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(world: World, poold: Poold) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")

    await world.serve(server)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(get())
    assert (await client.rest()).endswith(b"reset")
