"""Questions for names: who is answered, with what, and what is written down."""

import asyncio
import socket
from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from egress_world import Poold, World, hosts

from poold.egress.proxy.asking import QUESTIONS_PER_S
from poold.egress.proxy.fakes import MAX_NAMES, RANGE, Fakes


def question(name: str, kind: int = 1, number: int = 7) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    return number.to_bytes(2) + b"\x01\x00\x00\x01\0\0\0\0\0\0" + labels + kind.to_bytes(2) + b"\x00\x01"


def code(reply: bytes) -> int:
    return reply[3] & 15


def count(reply: bytes) -> int:
    return int.from_bytes(reply[6:8])


async def ask(world: World, packet: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, world.sockets.dns_udp.getsockname())
        await loop.sock_sendall(sock, packet)
        async with asyncio.timeout(5):
            return await loop.sock_recv(sock, 4096)


async def test_an_allowed_name_has_an_address_of_ours_and_always_the_same(world: World, poold: Poold) -> None:
    await poold.rule(hosts("allowed.example", "*.more.example"))
    reply = await ask(world, question("Allowed.Example"))
    assert (code(reply), count(reply), reply[:2]) == (0, 1, b"\x00\x07")
    assert IPv4Address(reply[-4:]) in RANGE
    assert (await ask(world, question("allowed.example")))[-4:] == reply[-4:]
    assert (await ask(world, question("a.more.example")))[-4:] != reply[-4:]
    assert world.resolved == []


@pytest.mark.parametrize("kind", [28, 65, 64, 16, 15, 255])
async def test_an_allowed_name_has_nothing_but_that_address(world: World, poold: Poold, kind: int) -> None:
    await poold.rule(hosts("allowed.example"))
    reply = await ask(world, question("allowed.example", kind))
    assert (code(reply), count(reply)) == (0, 0)


@pytest.mark.parametrize(
    ("name", "why"), [("denied.example", "policy"), ("12345", "bad_name"), ("a!b.example", "bad_name")]
)
async def test_other_names_do_not_exist_and_are_written_down(world: World, poold: Poold, name: str, why: str) -> None:
    await poold.rule(hosts("allowed.example"))
    for kind in (1, 28, 16):
        assert code(await ask(world, question(name, kind))) == 3
    await poold.row(verdict="refused", via="dns", name=name, why=why, times=3)


async def test_names_of_addresses_are_refused_without_a_word(world: World, poold: Poold) -> None:
    await poold.rule(hosts("allowed.example"))
    assert code(await ask(world, question("4.3.2.1.in-addr.arpa", 12))) == 3
    await ask(world, question("denied.example"))
    await poold.row(name="denied.example")


async def test_while_connections_are_held_every_name_has_an_address(world: World, poold: Poold) -> None:
    await poold.rule(replace(hosts("allowed.example"), hold_s=10))
    assert count(await ask(world, question("denied.example"))) == 1


async def test_questions_that_are_none_are_counted(world: World, poold: Poold) -> None:
    reply = await ask(world, question("a.example")[:-3])
    assert code(reply) == 1
    await poold.row(via="dns", why="bad_request")


async def test_questions_come_by_tcp_too_one_after_the_other(world: World, poold: Poold) -> None:
    await poold.rule(hosts("allowed.example"))
    client = await world._client(world.sockets.dns_tcp)
    packet = question("allowed.example")
    framed = len(packet).to_bytes(2) + packet
    for byte in framed + framed:
        client.writer.write(bytes([byte]))
    for _ in range(2):
        length = int.from_bytes(await client.read(2))
        assert count(await client.read(length)) == 1
    client.writer.write_eof()
    assert await client.rest() == b""


async def test_too_many_questions_are_not_answered(world: World, poold: Poold) -> None:
    answers = world.door._answers
    replies = [answers.reply(question("denied.example")) for _ in range(3 * QUESTIONS_PER_S)]
    assert None in replies
    rows = [await poold.next("row"), await poold.next("row")]
    assert {row["why"] for row in rows} == {"policy", "too_fast"}


def test_addresses_stand_for_one_name_each_and_the_oldest_is_forgotten() -> None:
    fakes = Fakes()
    first = fakes.address_of("n0.example")
    given = {fakes.address_of(f"n{index}.example") for index in range(MAX_NAMES)}
    assert len(given) == MAX_NAMES
    assert all(address in RANGE and int(address) % 256 not in (0, 255) for address in given)
    assert fakes.name_of(first) == "n0.example"
    fakes.address_of("n0.example")
    fakes.address_of("one.more.example")
    assert fakes.name_of(first) == "n0.example"
    assert sum(fakes.name_of(address) is None for address in given) == 1


def test_addresses_are_given_out_in_turn_round_and_round() -> None:
    fakes = Fakes()
    for index in range(RANGE.num_addresses + 10):
        name = f"n{index}.example"
        assert fakes.name_of(fakes.address_of(name)) == name
