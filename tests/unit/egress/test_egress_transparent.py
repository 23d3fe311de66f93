"""A guest that does not know it speaks to a proxy: by the name in TLS, by Host, and by an address that is a name's."""

import asyncio
import socket

import pytest
from egress_world import OTHER, PUBLIC, Client, Poold, Web, World, client_hello, echo, hosts, nets

from contract.network import HostRule
from poold.egress.policy import Level, Policy
from poold.egress.proxy.door import original_destination
from poold.egress.proxy.refusals import TLS_ALERT
from poold.egress.wire import dns

GET = b"GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n"


def fake(world: World, name: str) -> str:
    """The address that our own names give out for `name`."""
    return str(world.door._fakes.address_of(name))


async def greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 hello\r\n")
    await echo(reader, writer)


async def refused(client: Client, poold: Poold, why: str, answer: bytes, **row: object) -> None:
    assert await client.rest() == answer
    await poold.row(verdict="refused", why=why, **row)


@pytest.mark.parametrize("address", ["fake", PUBLIC, "8.8.8.8", "10.1.2.3"])
async def test_tls_goes_where_its_name_leads_whatever_the_address(world: World, poold: Poold, address: str) -> None:
    await world.serve(echo, port=443)
    await poold.rule(hosts("allowed.example"))
    client = await world.transparent(fake(world, "allowed.example") if address == "fake" else address, 443)
    hello = client_hello("allowed.example")
    for byte in hello[:20]:
        await client.send(bytes([byte]))
        await asyncio.sleep(0)
    await client.send(hello[20:])
    assert await client.read(len(hello)) == hello
    assert world.dialled == [(PUBLIC, 443)]
    client.writer.write_eof()
    assert await client.rest() == b""
    await poold.row(verdict="allowed", via="tls", name="allowed.example", address=PUBLIC, up=len(hello))


async def test_tls_for_a_name_that_is_not_allowed_gets_an_alert(world: World, poold: Poold) -> None:
    await poold.rule(hosts("allowed.example"))
    client = await world.transparent(PUBLIC, 443)
    await client.send(client_hello("denied.example"))
    await refused(client, poold, "policy", TLS_ALERT, via="tls", name="denied.example", port=443)


async def test_the_name_in_tls_has_to_be_the_one_that_was_asked_for(world: World, poold: Poold) -> None:
    await poold.rule(hosts("allowed.example", "other.example"))
    client = await world.transparent(fake(world, "allowed.example"), 443)
    await client.send(client_hello("other.example"))
    await refused(client, poold, "sni_mismatch", TLS_ALERT, via="tls", name="other.example")


async def test_tls_without_a_name_is_refused_unless_its_address_is_allowed(world: World, poold: Poold) -> None:
    await world.serve(echo, port=443)
    await poold.rule(hosts("allowed.example"))
    client = await world.transparent(PUBLIC, 443)
    await client.send(client_hello(None))
    await refused(client, poold, "no_sni", TLS_ALERT, address=PUBLIC)
    client = await world.transparent(fake(world, "allowed.example"), 443)
    await client.send(client_hello(None))
    await refused(client, poold, "no_sni", TLS_ALERT, name="allowed.example")
    await poold.rule(nets((f"{PUBLIC}/32", 443)))
    client = await world.transparent(PUBLIC, 443)
    hello = client_hello(None)
    await client.send(hello)
    assert await client.read(len(hello)) == hello


async def test_an_address_that_is_allowed_is_dialled_if_its_name_is_not(world: World, poold: Poold) -> None:
    await world.serve(echo, port=443)
    await world.serve(Web())
    await poold.rule(Policy(levels=(Level("sandbox", is_open=False, nets=nets((PUBLIC + "/32", 443)).levels[0].nets),)))
    client = await world.transparent(PUBLIC, 443)
    hello = client_hello("denied.example")
    await client.send(hello)
    assert await client.read(len(hello)) == hello
    assert world.resolved == []


async def test_an_unknown_address_of_ours_is_decided_by_the_name_or_not_at_all(world: World, poold: Poold) -> None:
    await world.serve(echo, port=443)
    await poold.rule(hosts("allowed.example", ports=(443, 22)))
    client = await world.transparent("198.18.77.77", 443)
    hello = client_hello("allowed.example")
    await client.send(hello)
    assert await client.read(len(hello)) == hello
    client = await world.transparent("198.18.77.77", 443)
    await client.send(client_hello(None))
    await refused(client, poold, "no_sni", TLS_ALERT)
    client = await world.transparent("198.18.77.77", 22)
    await client.send(b"SSH-2.0-x\r\n")
    await refused(client, poold, "no_destination", b"reset")


@pytest.mark.parametrize(
    ("port", "first", "why"),
    [
        (443, b"SSH-2.0-x\r\n", "not_tls"),
        (443, b"\x16\x03\x01\xff\xff" + b"x" * 40, "not_tls"),
        (443, b"\x80\x2e\x01\x00\x02", "not_tls"),
        (80, b"\x00\x01\x02\r\n\r\n", "not_http"),
        (80, b"SSH-2.0-x\r\n\r\n", "not_http"),
        (80, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "h2c"),
        (80, b"\r\nGET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n", "bad_request"),
    ],
)
async def test_each_port_has_its_language(world: World, poold: Poold, port: int, first: bytes, why: str) -> None:
    await poold.rule(hosts("allowed.example"))
    client = await world.transparent(fake(world, "allowed.example"), port)
    await client.send(first)
    await client.rest()
    await poold.row(verdict="refused", why=why)
    assert world.dialled == []


async def test_plain_http_goes_where_its_host_leads(world: World, poold: Poold) -> None:
    web = Web()
    await world.serve(web)
    await poold.rule(hosts("allowed.example"))
    client = await world.transparent("8.8.8.8", 80)
    await client.send(GET)
    assert (await client.answer())[1] == b"ok"
    await client.send(GET.replace(b"allowed", b"denied"))
    assert b"why=policy" in await client.rest()
    await poold.row(verdict="allowed", via="http", name="allowed.example", address=PUBLIC, port=80)
    await poold.row(verdict="refused", via="http", name="denied.example", port=80)


@pytest.mark.parametrize(
    "request_",
    [
        GET.replace(b"allowed", b"other"),
        b"GET http://other.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
        b"GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: allowed.example:8080\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n",
    ],
)
async def test_the_host_has_to_be_the_name_that_was_asked_for(world: World, poold: Poold, request_: bytes) -> None:
    await poold.rule(hosts("allowed.example", "other.example"))
    client = await world.transparent(fake(world, "allowed.example"), 80)
    await client.send(request_)
    assert b"why=host_mismatch" in await client.rest()
    await poold.row(verdict="refused", why="host_mismatch")
    assert world.dialled == []


async def test_http_to_an_address_that_is_allowed(world: World, poold: Poold) -> None:
    web = Web()
    await world.serve(web)
    await poold.rule(nets((f"{PUBLIC}/32", 80)))
    client = await world.transparent(PUBLIC, 80)
    await client.send(b"GET / HTTP/1.1\r\nHost: " + PUBLIC.encode() + b"\r\n\r\n")
    assert (await client.answer())[1] == b"ok"
    await client.send(b"GET / HTTP/1.1\r\nHost: whatever.example\r\n\r\n")
    assert (await client.answer())[1] == b"ok"
    await client.send(b"GET / HTTP/1.1\r\nHost: " + OTHER.encode() + b"\r\n\r\n")
    assert b"why=host_mismatch" in await client.rest()
    assert web.connections == 1


async def test_a_server_may_speak_first_by_a_name_of_ours(world: World, poold: Poold) -> None:
    await world.serve(greets, port=22)
    await poold.rule(hosts("allowed.example", ports=(22,)))
    client = await world.transparent(fake(world, "allowed.example"), 22)
    assert await client.until(b"\r\n") == b"220 hello\r\n"
    await client.send(b"EHLO x\r\n")
    assert await client.until(b"\r\n") == b"EHLO x\r\n"
    client.writer.write_eof()
    assert await client.rest() == b""
    await poold.row(verdict="allowed", via="tcp", name="allowed.example", port=22, up=8, down=19)


async def test_what_is_refused_at_other_ports_is_reset_at_once(world: World, poold: Poold) -> None:
    await poold.rule(hosts("allowed.example"))
    client = await world.transparent(fake(world, "denied.example"), 22)
    await refused(client, poold, "policy", b"reset", via="tcp", name="denied.example", port=22)
    client = await world.transparent(OTHER, 22)
    await refused(client, poold, "policy", b"reset", via="tcp", name=None, address=OTHER, port=22)


async def test_at_other_ports_too_tls_and_http_have_to_mean_the_name(world: World, poold: Poold) -> None:
    web = Web()
    await world.serve(web, port=8080)
    await poold.rule(hosts("allowed.example", ports=(8080,)))
    client = await world.transparent(fake(world, "allowed.example"), 8080)
    await client.send(client_hello("other.example"))
    await refused(client, poold, "sni_mismatch", TLS_ALERT, name="allowed.example", up=0)
    client = await world.transparent(fake(world, "allowed.example"), 8080)
    await client.send(b"GET / HTTP/1.1\r\nHost: allowed.example:8080\r\nProxy-Connection: x\r\n\r\n")
    assert (await client.answer())[1] == b"ok"
    await client.send(b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n")
    assert b"why=host_mismatch" in await client.rest()
    assert web.heads == [b"GET / HTTP/1.1\r\nHost: allowed.example:8080\r\n\r\n"]


async def test_a_name_in_tls_at_another_port_of_an_unknown_address(world: World, poold: Poold) -> None:
    await world.serve(echo, port=8443)
    await poold.rule(hosts("allowed.example", ports=(8443,)))
    client = await world.transparent(OTHER, 8443)
    hello = client_hello("allowed.example")
    await client.send(hello)
    assert await client.read(len(hello)) == hello
    assert world.dialled == [(PUBLIC, 8443)]


async def test_requests_that_are_allowed_one_by_one_at_another_port(world: World, poold: Poold) -> None:
    await world.serve(Web(), port=8080)
    rule = HostRule("allowed.example", (8080,), (), ("/ok",))
    await poold.rule(Policy(levels=(Level("sandbox", hosts=(rule,)),)))
    client = await world.transparent(fake(world, "allowed.example"), 8080)
    await client.send(b"GET /ok HTTP/1.1\r\nHost: allowed.example:8080\r\n\r\n")
    assert (await client.answer())[1] == b"ok"
    client = await world.transparent(fake(world, "allowed.example"), 8080)
    await client.send(b"SSH-2.0-x\r\n")
    assert await client.rest() == b"reset"


async def test_nowhere_and_ourselves_are_refused(world: World, poold: Poold) -> None:
    await poold.rule(nets(("127.0.0.1/32", 8080)))
    client = await world.transparent("127.0.0.1", 8080)
    await refused(client, poold, "own_address", b"reset")
    world.destination = None
    client = await world._client(world.sockets.transparent)
    await refused(client, poold, "no_destination", b"reset")


async def test_open_reaches_public_addresses_only(world: World, poold: Poold) -> None:
    await world.serve(echo, port=5000)
    await poold.rule(Policy(levels=(Level("sandbox", is_open=True),)))
    client = await world.transparent(PUBLIC, 5000)
    await client.send(b"\x00hi")
    assert await client.read(3) == b"\x00hi"
    client = await world.transparent("10.0.0.1", 5000)
    await refused(client, poold, "private_address", b"reset")
    client = await world.transparent("169.254.169.254", 80)
    await client.send(b"GET / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n")
    assert b"why=forbidden_address" in await client.rest()


def test_a_connection_that_was_not_redirected_has_no_other_destination() -> None:
    with socket.socket() as sock:
        assert original_destination(sock) is None


async def test_questions_lead_to_addresses_and_addresses_to_names(world: World, poold: Poold) -> None:
    await world.serve(greets, port=22)
    await poold.rule(hosts("allowed.example", ports=(22,)))
    packet = b"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07allowed\x07example\x00\x00\x01\x00\x01"
    reply = world.door._answers.reply(packet)
    assert reply is not None
    assert dns.read_question(packet).name == "allowed.example"
    client = await world.transparent(socket.inet_ntoa(reply[-4:]), 22)
    assert await client.until(b"\r\n") == b"220 hello\r\n"
