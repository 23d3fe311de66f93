"""Guests that send anything: the proxy goes on, says nothing of an error, and keeps nothing."""

import asyncio
import random

import pytest
from egress_world import Client, Poold, Web, World, client_hello, echo, hosts, limited

SEEDS = [
    b"CONNECT allowed.example:443 HTTP/1.1\r\nHost: allowed.example\r\n\r\n" + client_hello("allowed.example"),
    b"CONNECT allowed.example:80 HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
    b"POST http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n0\r\n\r\nGET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nxx",
    b"PUT / HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n0123456789",
    client_hello("allowed.example"),
    b"\x00\x20" + bytes(32),
    b"SSH-2.0-x\r\n",
]


def changed(data: bytes, choice: random.Random) -> bytes:
    """Some bytes of `data` are others, missing, or there twice."""
    mutable = bytearray(data)
    for _ in range(choice.choice((0, 1, 1, 2, 8))):
        at = choice.randrange(len(mutable) + 1)
        match choice.randrange(4):
            case 0:
                mutable[at : at + 1] = bytes([choice.randrange(256)])
            case 1:
                del mutable[at : at + choice.randrange(1, 9)]
            case 2:
                mutable[at:at] = mutable[at : at + choice.randrange(1, 40)]
            case 3:
                mutable[at:at] = choice.choice((b"\r\n", b"\n", b"\r", b"\0", b" ", b"\r\n\r\n", b"HTTP/1.1"))
    return bytes(mutable)


async def visit(world: World, choice: random.Random) -> None:
    data = changed(choice.choice(SEEDS), choice)
    way = choice.randrange(4)
    name = choice.choice(("allowed.example", "denied.example"))
    if way == 0:
        address = choice.choice((str(world.door._fakes.address_of(name)), "8.8.8.8", "198.19.1.1"))
        client = await world.transparent(address, choice.choice((22, 80, 443, 8080)))
    else:
        client = await world.explicit() if way < 3 else await world._client(world.sockets.dns_tcp)
    cut = choice.randrange(len(data) + 1)
    try:
        await client.send(data[:cut])
        if choice.random() < 0.5:
            await asyncio.sleep(0.001)
        await client.send(data[cut:])
        await leave(client, choice)
    except OSError:
        client.writer.transport.abort()


async def leave(client: Client, choice: random.Random) -> None:
    match choice.randrange(3):
        case 0:
            client.writer.transport.abort()
        case 1:
            client.writer.write_eof()
            await asyncio.wait((asyncio.ensure_future(client.rest()),), timeout=0.2)
            client.writer.transport.abort()
        case 2:
            client.writer.close()


@pytest.mark.parametrize("seed", range(6))
async def test_no_guest_ends_the_proxy_or_leaves_anything_in_it(
    world: World, poold: Poold, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    choice = random.Random(seed)
    await world.serve(Web(), port=80)
    await world.serve(Web(b"HTTP/1.1 101 x\r\n\r\n"), port=8080)
    await world.serve(echo, port=443)
    await world.serve(echo, port=22)
    rule = limited(hosts("allowed.example", ports=(22, 80, 443, 8080)), connects_per_sec=1000)
    await poold.rule(rule)
    for round_ in range(12):
        await asyncio.gather(*(visit(world, choice) for _ in range(10)))
        if round_ % 4 == 3:
            await poold.rule(rule, f"sb-{round_}")
    await poold.rule(hosts("other.example"), "sb-z")
    async with asyncio.timeout(10):
        while world.door.visits:
            await asyncio.sleep(0.01)
    assert not world.control.gate.flows
    assert capsys.readouterr().err == ""
