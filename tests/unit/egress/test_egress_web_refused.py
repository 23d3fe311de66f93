"""Requests of plain HTTP that could be read in two ways, and answers to them: refused, in their own name."""

import pytest
from egress_world import PUBLIC, Poold, Web, World, hosts

from poold.egress.policy import Level, Policy

SMALL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def get(path: str = "/", host: str = "allowed.example", more: str = "") -> bytes:
    return f"GET http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


SMUGGLING = [
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    b"Content-Length: 5\r\nContent-Length: 5\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: 0x5\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length:\r\n",
    b"Content-Length: 5\r\nContent-Length : 0\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: \x0bchunked\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding:\r\n chunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"X: y\r\n folded: z\r\n",
    b"X: y\nZ: w\r\n",
    b"X: y\rZ: w\r\n",
    b"X: \x00\r\n",
    b"Host: other.example\r\n",
    b" Host: other.example\r\n",
    b"NoColon\r\n",
    b": empty\r\n",
    b"X\xff: y\r\n",
    b"Expect: 200-ok\r\n",
]


@pytest.mark.parametrize("headers", SMUGGLING)
async def test_what_could_be_read_in_two_ways_is_not_read(world: World, poold: Poold, headers: bytes) -> None:
    web = Web()
    await world.serve(web)
    await poold.rule(hosts("allowed.example", "other.example"))
    client = await world.explicit()
    await client.send(b"POST http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n" + headers + b"\r\nhello")
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\nWarren-Egress: refused; why=bad_request")
    await poold.row(verdict="refused", why="bad_request", via="connect")
    assert web.heads == []


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1",
        b"GET allowed.example/ HTTP/1.1",
        b"GET https://allowed.example/ HTTP/1.1",
        b"GET ftp://allowed.example/ HTTP/1.1",
        b"GET http://allowed.example@other.example/ HTTP/1.1",
        b"GET http://allowed.example\\@other.example/ HTTP/1.1",
        b"GET http://allowed.example/a b HTTP/1.1",
        b"GET http://allowed.example/#x HTTP/1.1",
        b"GET  http://allowed.example/ HTTP/1.1",
        b"GET http://allowed.example/ HTTP/1.1 ",
        b"GET http://allowed.example/ HTTP/1.2",
        b"GET http://allowed.example/ HTTP/2.0",
        b"GET http://allowed.example/ http/1.1",
        b"G(T http://allowed.example/ HTTP/1.1",
        b"GET http:///etc HTTP/1.1",
        b"GET http://allowed.example/\xff HTTP/1.1",
    ],
)
async def test_first_lines_that_are_not_clear_are_refused(world: World, poold: Poold, line: bytes) -> None:
    await poold.rule(hosts("allowed.example", "other.example"))
    client = await world.explicit()
    await client.send(line + b"\r\nHost: allowed.example\r\n\r\n")
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert world.dialled == []


@pytest.mark.parametrize(
    "more", ["Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n", "Upgrade: h2c\r\n"]
)
async def test_an_upgrade_to_http_2_is_refused(world: World, poold: Poold, more: str) -> None:
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(get(more=more))
    assert b"403 Forbidden\r\nWarren-Egress: refused; why=h2c" in await client.rest()


async def test_the_host_header_has_to_be_the_targets(world: World, poold: Poold) -> None:
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(b"GET http://allowed.example/ HTTP/1.1\r\nHost: denied.example\r\n\r\n")
    assert b"why=host_mismatch" in await client.rest()
    await poold.row(verdict="refused", why="host_mismatch", name="denied.example")


BAD_CHUNKS = [
    b"5\nhello\r\n0\r\n\r\n",
    b"5\r\nhelloX0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"5 5\r\nhello\r\n0\r\n\r\n",
    b"5;a\rb\r\nhello\r\n0\r\n\r\n",
    b"1000000000000000000\r\n",
    b"5\r\nhello\r\n0\r\nGET / HTTP/1.1\r\n\r\n",
    b"x" * 5000,
]


@pytest.mark.parametrize("body", BAD_CHUNKS)
async def test_bad_chunks_end_the_request_before_its_end(world: World, poold: Poold, body: bytes) -> None:
    web = Web()
    await world.serve(web)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(
        b"POST http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    )
    assert b"why=bad_request" in await client.rest()
    assert web.bodies == []


async def test_an_endless_head_is_refused(world: World, poold: Poold) -> None:
    client = await world.explicit()
    await client.send(b"GET http://allowed.example/ HTTP/1.1\r\n" + b"X: y\r\n" * 20_000)
    assert b"why=bad_request" in await client.rest()


async def test_an_address_in_the_target_is_decided_as_one(world: World, poold: Poold) -> None:
    await poold.rule(Policy(levels=(Level("sandbox", is_open=True),)))
    await world.serve(web := Web(), PUBLIC)
    client = await world.explicit()
    await client.send(get(host=PUBLIC))
    assert (await client.answer())[1] == b"ok"
    assert web.heads[0].startswith(b"GET / HTTP/1.1\r\nHost: 93.184.216.34\r\n")
    for bad in ("169.254.169.254", "[::ffff:169.254.169.254]", "[::1]"):
        client = await world.explicit()
        await client.send(get(host=bad))
        assert b"why=forbidden_address" in await client.rest()


async def test_large_bodies_pass_both_ways_unchanged(world: World, poold: Poold) -> None:
    body = bytes(range(256)) * 20_000
    web = Web(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await world.serve(web)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    head = b"POST http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: %d\r\n\r\n" % len(body)
    await client.send(head + body)
    assert (await client.answer())[1] == body
    assert web.bodies == [body]


async def test_plain_http_to_the_port_of_tls_is_refused(world: World, poold: Poold) -> None:
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(b"GET http://allowed.example:443/ HTTP/1.1\r\nHost: allowed.example:443\r\n\r\n")
    assert b"why=not_tls" in await client.rest()
    await poold.row(verdict="refused", why="not_tls", name="allowed.example", port=443)
    assert world.dialled == []


@pytest.mark.parametrize(
    ("second", "why", "name"),
    [
        (b"nonsense\r\n\r\n", "not_http", None),
        (b"GET http://12345/ HTTP/1.1\r\nHost: 12345\r\n\r\n", "bad_name", "12345"),
    ],
)
async def test_a_second_request_is_refused_in_its_own_name(
    world: World, poold: Poold, second: bytes, why: str, name: str | None
) -> None:
    await world.serve(Web())
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(get())
    assert (await client.answer())[1] == b"ok"
    await client.send(second)
    assert f"400 Bad Request\r\nWarren-Egress: refused; why={why}".encode() in await client.rest()
    await poold.row(verdict="allowed", name="allowed.example")
    await poold.row(verdict="refused", why=why, name=name)
