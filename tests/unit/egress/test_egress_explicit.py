"""A guest that knows it speaks to a proxy: CONNECT."""

import asyncio

import pytest
from egress_world import OTHER, PUBLIC, Poold, Web, World, client_hello, echo, hosts, nets

from contract.network import HostRule, NetRule
from poold.egress.policy import Level, Policy
from poold.egress.proxy.refusals import TLS_ALERT

CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def connect(target: str) -> bytes:
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()


async def test_an_allowed_name_is_resolved_and_dialled_and_bytes_pass(world: World, poold: Poold) -> None:
    await world.serve(echo, port=443)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(connect("Allowed.example.:443"))
    assert await client.read(len(CONNECTED)) == CONNECTED
    hello = client_hello("allowed.example")
    await client.send(hello)
    assert await client.read(len(hello)) == hello
    opened = await poold.next("open")
    assert (opened["name"], opened["address"], opened["port"]) == ("allowed.example", PUBLIC, 443)
    client.writer.write_eof()
    assert await client.rest() == b""
    row = await poold.row(verdict="allowed", via="connect", name="allowed.example", address=PUBLIC, why=None, number=1)
    assert (row["up"], row["down"], row["id"], row["sandbox"]) == (len(hello), len(hello), opened["id"], "sb-a")
    assert row["rule"] == "allowed.example:80,443"
    assert world.dialled == [(PUBLIC, 443)]


async def test_without_a_rule_everything_is_refused(world: World, poold: Poold) -> None:
    client = await world.explicit()
    await client.send(connect("allowed.example:443"))
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\nWarren-Egress: refused; why=policy\r\n")
    assert b"deny" in answer
    row = await poold.row(verdict="refused", via="connect", name="allowed.example", port=443, why="policy", times=1)
    assert row["sandbox"] is None
    assert world.resolved == []


@pytest.mark.parametrize(
    ("target", "status", "why"),
    [
        ("denied.example:443", b"403", "policy"),
        ("allowed.example:22", b"403", "policy"),
        ("169.254.169.254:80", b"403", "policy"),
        ("[::ffff:169.254.169.254]:80", b"403", "policy"),
        ("2852039166:80", b"400", "bad_name"),
        ("0xa9fea9fe:80", b"400", "bad_name"),
        ("0251.0376.0251.0376:80", b"400", "bad_name"),
        ("allowed.example%00.evil.example:443", b"400", "bad_name"),
        ("allowed.example", b"400", "bad_request"),
        ("allowed.example:0", b"400", "bad_request"),
        ("allowed.example:99999", b"400", "bad_request"),
        ("user@allowed.example:443", b"400", "bad_request"),
    ],
)
async def test_what_is_not_allowed_or_not_clear_is_refused(
    world: World, poold: Poold, target: str, status: bytes, why: str
) -> None:
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(f"CONNECT {target} HTTP/1.1\r\nHost: x.example\r\n\r\n".encode())
    answer = await client.rest()
    assert answer[9:12] == status
    assert f"why={why}\r\n".encode() in answer
    await poold.row(verdict="refused", why=why)
    assert world.dialled == []


@pytest.mark.parametrize(
    ("addresses", "why"),
    [
        (["10.0.0.1"], "private_address"),
        (["127.0.0.1"], "forbidden_address"),
        (["169.254.169.254"], "forbidden_address"),
        (["::ffff:169.254.169.254"], "forbidden_address"),
        (["fd00:ec2::254"], "forbidden_address"),
        (["192.168.1.1", "10.0.0.1"], "private_address"),
    ],
)
async def test_a_name_that_leads_where_nobody_may_go_is_refused(
    world: World, poold: Poold, addresses: list[str], why: str
) -> None:
    world.names["allowed.example"] = addresses
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(connect("allowed.example:443"))
    assert f"why={why}".encode() in await client.rest()
    await poold.row(verdict="refused", why=why, name="allowed.example", address=addresses[0].removeprefix("::ffff:"))
    assert world.dialled == []


async def test_each_connection_resolves_anew(world: World, poold: Poold) -> None:
    await world.serve(echo, port=443)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(connect("allowed.example:443"))
    assert await client.read(len(CONNECTED)) == CONNECTED
    world.names["allowed.example"] = ["10.0.0.1"]
    again = await world.explicit()
    await again.send(connect("allowed.example:443"))
    assert b"why=private_address" in await again.rest()


async def test_refused_addresses_are_skipped_and_others_are_tried_in_turn(world: World, poold: Poold) -> None:
    await world.serve(echo, OTHER, 443)
    world.names["allowed.example"] = ["10.0.0.1", PUBLIC, OTHER]
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(connect("allowed.example:443"))
    assert await client.read(len(CONNECTED)) == CONNECTED
    assert world.dialled == [(PUBLIC, 443), (OTHER, 443)]


async def test_an_address_of_the_host_itself_is_refused(world: World, poold: Poold) -> None:
    world.own.add(PUBLIC)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(connect("allowed.example:443"))
    assert b"why=own_address" in await client.rest()
    await poold.row(why="own_address", address=PUBLIC)


async def test_a_private_address_that_the_operator_allows_is_reached(world: World, poold: Poold) -> None:
    await world.serve(echo, "10.0.0.1", 443)
    world.names["allowed.example"] = ["10.0.0.1"]
    await poold.rule(hosts("allowed.example", private_hosts=(HostRule("allowed.example"),)))
    client = await world.explicit()
    await client.send(connect("allowed.example:443"))
    assert await client.read(len(CONNECTED)) == CONNECTED


async def test_nobody_there_and_no_such_name_are_a_502(world: World, poold: Poold) -> None:
    await poold.rule(hosts("allowed.example", "nowhere.example"))
    client = await world.explicit()
    await client.send(connect("allowed.example:443"))
    assert b"502 Bad Gateway\r\nWarren-Egress: refused; why=connect_failed" in await client.rest()
    client = await world.explicit()
    await client.send(connect("nowhere.example:443"))
    assert b"502 Bad Gateway\r\nWarren-Egress: refused; why=resolve_failed" in await client.rest()


async def test_an_address_is_reached_by_a_rule_for_it(world: World, poold: Poold) -> None:
    await world.serve(echo, port=5432)
    await poold.rule(nets((f"{PUBLIC}/32", 5432)))
    client = await world.explicit()
    await client.send(connect(f"{PUBLIC}:5432") + b"hello\n")
    assert await client.read(len(CONNECTED) + 6) == CONNECTED + b"hello\n"
    assert world.resolved == []
    refused = await world.explicit()
    await refused.send(connect(f"{OTHER}:5432"))
    assert b"why=policy" in await refused.rest()


@pytest.mark.parametrize(
    ("first", "why", "answer"),
    [
        (client_hello("other.example"), "sni_mismatch", TLS_ALERT),
        (client_hello(None), "no_sni", TLS_ALERT),
        (b"SSH-2.0-x\r\n", "not_tls", b"reset"),
        (b"\x16\x03\x01\x00\x05hello", "not_tls", TLS_ALERT),
    ],
)
async def test_inside_a_tunnel_to_443_only_tls_for_the_same_name_passes(
    world: World, poold: Poold, first: bytes, why: str, answer: bytes
) -> None:
    got: list[bytes] = []

    async def server(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read())

    await world.serve(server, port=443)
    await poold.rule(hosts("allowed.example", "other.example"))
    client = await world.explicit()
    await client.send(connect("allowed.example:443"))
    assert await client.read(len(CONNECTED)) == CONNECTED
    await client.send(first)
    assert await client.rest() == answer
    await poold.row(verdict="refused", why=why, via="connect", up=0)
    assert b"".join(got) == b""


async def test_plain_http_inside_a_tunnel_to_443_is_not_tls_to_anybody(world: World, poold: Poold) -> None:
    web = Web()
    await world.serve(web, port=443)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(connect("allowed.example:443"))
    await client.read(len(CONNECTED))
    await client.send(b"GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
    assert b"why=not_tls" in await client.rest()
    await poold.row(verdict="refused", why="not_tls")
    assert web.heads == []


async def test_http_inside_a_tunnel_is_read_and_has_to_be_for_the_same_host(world: World, poold: Poold) -> None:
    web = Web()
    await world.serve(web)
    await poold.rule(hosts("allowed.example"))
    client = await world.explicit()
    await client.send(connect("allowed.example:80"))
    await client.read(len(CONNECTED))
    await client.send(b"GET /a HTTP/1.1\r\nHost: allowed.example\r\nProxy-Authorization: x\r\n\r\n")
    assert (await client.answer())[1] == b"ok"
    await client.send(b"GET /b HTTP/1.1\r\nHost: other.example\r\n\r\n")
    assert b"why=host_mismatch" in await client.rest()
    assert web.heads == [b"GET /a HTTP/1.1\r\nHost: allowed.example\r\n\r\n"]


async def test_a_tunnel_for_requests_that_are_allowed_one_by_one(world: World, poold: Poold) -> None:
    web = Web()
    await world.serve(web)
    rule = HostRule("allowed.example", (80,), ("GET",), ("/ok/*",))
    await poold.rule(Policy(levels=(Level("sandbox", hosts=(rule,), nets=(NetRule("1.2.3.4/32", 1),)),)))
    client = await world.explicit()
    await client.send(connect("allowed.example:80"))
    await client.read(len(CONNECTED))
    assert world.dialled == []
    await client.send(b"GET /ok/a HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
    assert (await client.answer())[1] == b"ok"
    await client.send(b"POST /ok/a HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 0\r\n\r\n")
    assert b"why=policy" in await client.rest()
    assert len(web.heads) == 1


async def test_a_server_may_speak_first_at_other_ports(world: World, poold: Poold) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-server\r\n")
        await echo(reader, writer)

    await world.serve(server, port=22)
    await poold.rule(hosts("allowed.example", ports=(22,)))
    client = await world.explicit()
    await client.send(connect("allowed.example:22"))
    assert await client.until(b"SSH-2.0-server\r\n") == CONNECTED + b"SSH-2.0-server\r\n"
    await client.send(b"SSH-2.0-client\r\n")
    assert await client.until(b"client\r\n") == b"SSH-2.0-client\r\n"


@pytest.mark.parametrize("port", [80, 8080])
async def test_http_2_without_tls_is_refused(world: World, poold: Poold, port: int) -> None:
    await world.serve(echo, port=port)
    await poold.rule(hosts("allowed.example", ports=(port,)))
    client = await world.explicit()
    await client.send(connect(f"allowed.example:{port}"))
    await client.read(len(CONNECTED))
    await client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    await client.rest()
    await poold.row(verdict="refused", why="h2c")
