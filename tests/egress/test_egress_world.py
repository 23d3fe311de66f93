"""The world that the other tests of this folder are in: it is closed, and whatever leaves the host is seen."""

import socket

import pytest

from tests.egress.internet import Internet
from tests.egress.spaces import open_space
from tests.egress.web import MARK
from tests.egress.world import NotClosed, World, prove_shape
from tests.egress.zone import METADATA, WEB


def fetch(world: World, address: str, port: int) -> str:
    """What a server of the internet says to a program on the host."""

    def ask() -> str:
        with socket.create_connection((address, port), 5) as connection:
            connection.sendall(f"GET /seen HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
            return connection.makefile("rb").read().decode()

    return world.host.do(ask)


@pytest.mark.parametrize(("address", "port"), [(METADATA, 80), (WEB, 80), ("10.0.0.5", 80), ("203.0.113.9", 6667)])
def test_what_a_program_on_the_host_sends_anywhere_arrives_in_the_internet_and_is_recorded(
    world: World, internet: Internet, address: str, port: int
) -> None:
    packets, hits = world.arrived.mark(), internet.web.mark()
    assert MARK in fetch(world, address, port)
    assert (address, port) in [(hit.address, hit.port) for hit in internet.web.since(hits)]
    assert ("tcp", address, port) in [
        (packet.protocol, packet.destination, packet.port) for packet in world.arrived.since(packets)
    ]


def test_questions_to_any_resolver_are_recorded_with_their_names(world: World, internet: Internet) -> None:
    mark = world.arrived.mark()

    def ask() -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(5)
            sock.connect(("8.8.8.8", 53))
            sock.send(bytes.fromhex("abcd01000001000000000000") + b"\3web\7example\3com\0\0\1\0\1")
            return sock.recv(512)

    assert socket.inet_aton(WEB) in world.host.do(ask)
    assert ("8.8.8.8", "web.example.com") in [(one.destination, one.name) for one in world.arrived.since(mark)]


def test_nothing_is_tried_in_a_world_that_is_not_closed() -> None:
    with open_space("one") as one, open_space("two") as two:
        one.run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "down0", "netns", str(two.pid))
        prove_shape(one, two)
        one.run("ip", "link", "add", "more", "type", "veth", "peer", "name", "else")
        with pytest.raises(NotClosed, match="more"):
            prove_shape(one, two)
