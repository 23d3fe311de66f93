"""The proxy as a process of its own, what it is given of the real host, and guests that take their time."""

import asyncio
import os
import signal
import socket
import struct
import warnings
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import orjson
import pytest
from egress_world import PUBLIC, Poold, World, client_hello, datagrams, echo, hosts, listener

from poold.egress.policy import Policy
from poold.egress.proxy import tunnels, web
from poold.egress.proxy.dial import Dialer, HostResolver, connect, is_own
from poold.egress.proxy.process import Sockets, run
from poold.egress.proxy.refusals import TLS_ALERT, Refusal


class Child:
    """A proxy in a process, and a control connection to it that blocks."""

    def __init__(self, folder: Path) -> None:
        self.sockets = Sockets(listener(), listener(), datagrams(), listener(), None)
        self.control = socket.socket(socket.AF_UNIX)
        self.control.bind(str(folder / "control"))
        self.control.listen()
        self.is_over = False
        self.path = str(folder / "control")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: here are none that matter
            self.pid = os.fork()
        if self.pid == 0:
            try:
                run(self.sockets, self.control, 3)
                os._exit(0)
            finally:
                os._exit(1)
        for sock in (*vars(self.sockets).values(), self.control):
            if sock is not None and sock is not self.sockets.explicit:
                sock.close()

    def connect(self) -> "Line":
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(10)
        sock.connect(self.path)
        return Line(sock)


class Line:
    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.file = sock, sock.makefile("rb")

    def say(self, **message: Any) -> None:
        self.sock.sendall(orjson.dumps(message) + b"\n")

    def hear(self) -> dict[str, Any]:
        return dict(orjson.loads(self.file.readline()))

    def close(self) -> None:
        self.file.close()
        self.sock.close()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    child = Child(tmp_path)
    yield child
    child.sockets.explicit.close()
    if not child.is_over:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)


def ask(child: Child, request: bytes) -> bytes:
    with socket.create_connection(child.sockets.explicit.getsockname(), timeout=10) as sock:
        sock.sendall(request)
        got = b""
        while piece := sock.recv(4096):
            got += piece
        return got


def test_a_process_outlives_poold_and_ends_when_it_is_told(child: Child) -> None:
    first = child.connect()
    assert first.hear() == {
        "told": "hello", "version": 1, "slot": 3, "pid": child.pid, "number": 0, "sandbox": None,
    }  # fmt: skip
    assert b"why=policy" in ask(child, b"CONNECT localhost:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
    first.say(do="rule", number=9, sandbox="sb-a", policy=hosts("localhost", ports=(22,)).view())
    told = [first.hear() for _ in range(2)]
    assert {each["told"] for each in told} == {"ruled", "row"}
    first.close()
    assert b"why=forbidden_address" in ask(child, b"CONNECT localhost:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
    again = child.connect()
    assert again.hear()["number"] == 9
    assert (again.hear()["number"], again.hear()["why"]) == (1, "forbidden_address")
    again.say(do="end")
    assert again.hear() == {"told": "ended"}
    assert os.waitpid(child.pid, 0)[1] == 0
    child.is_over = True
    again.close()


def test_a_policy_is_read_as_it_was_written() -> None:
    policy = hosts("a.example", hold_s=3)
    assert Policy.decode(orjson.loads(orjson.dumps(policy.view()))) == policy


def test_the_hosts_own_addresses_are_known() -> None:
    assert is_own(ip_address("127.0.0.1"))
    assert is_own(ip_address("127.9.9.9"))
    assert not is_own(ip_address(PUBLIC))
    assert not is_own(ip_address("2606:4700::1111"))


async def test_names_are_resolved_as_the_host_does_and_addresses_connected_to() -> None:
    resolver = HostResolver()
    assert ip_address("127.0.0.1") in await resolver.resolve("localhost")
    resolver.close()
    with listener() as there:
        sock = await connect(ip_address("127.0.0.1"), there.getsockname()[1])
        sock.close()
        port = there.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await connect(ip_address("127.0.0.1"), port)


async def test_those_who_ask_for_the_same_name_at_once_ask_once() -> None:
    asked: list[str] = []

    async def resolve(name: str) -> list[Any]:
        asked.append(name)
        await asyncio.sleep(0.01)
        return []

    dialer = Dialer(resolve, connect, is_own)
    results = await asyncio.gather(
        *(dialer.dial("a.example", None, 80, lambda _: None) for _ in range(5)), return_exceptions=True
    )
    assert all(isinstance(result, Refusal) and result.why == "resolve_failed" for result in results)
    assert asked == ["a.example"]
    await dialer.close()


async def test_packets_that_were_dropped_are_written_down(world: World, poold: Poold) -> None:
    ours, kernels = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 1, 0, 64, 17, 0, bytes([172, 16, 0, 2]), bytes([8, 8, 8, 8]))
    udp = struct.pack("!HHHH", 4000, 443, 8, 0)

    def attribute(kind: int, data: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)

    body = b"\2\0\0\1" + attribute(1, struct.pack("!HBx", 0x0800, 0)) + attribute(10, b"udp\0") + attribute(9, ip + udp)
    ours.setblocking(False)
    object.__setattr__(world.sockets, "packets", ours)
    asyncio.get_running_loop().add_reader(ours, world.door._read_packets)
    for _ in range(3):
        kernels.send(struct.pack("=IHHII", 16 + len(body), 4 << 8, 0, 0, 0) + body)
    await poold.row(verdict="refused", via="packet", why="udp", address="8.8.8.8", port=443, times=3)
    asyncio.get_running_loop().remove_reader(ours)
    ours.close()
    kernels.close()


def hello(name: bytes, more: bytes = b"") -> bytes:
    """A ClientHello in one record."""
    extensions = struct.pack("!HHHBH", 0, len(name) + 5, len(name) + 3, 0, len(name)) + name + more
    said = b"\x03\x03" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + struct.pack("!H", len(extensions)) + extensions
    message = b"\1" + len(said).to_bytes(3) + said
    return b"\x16\x03\x01" + len(message).to_bytes(2) + message


async def test_an_encrypted_hello_is_refused(world: World, poold: Poold) -> None:
    await poold.rule(hosts("allowed.example"))
    client = await world.transparent(PUBLIC, 443)
    await client.send(hello(b"allowed.example", struct.pack("!HH", 0xFE0D, 4) + bytes(4)))
    assert await client.rest() == TLS_ALERT
    await poold.row(verdict="refused", why="ech", via="tls")


@pytest.mark.parametrize("name", [b"x" * 10_000, b"2852039166", b"a..b", b"169.254.169.254"])
async def test_a_name_in_tls_that_is_none_is_refused(world: World, poold: Poold, name: bytes) -> None:
    await poold.rule(hosts("allowed.example"))
    client = await world.transparent(PUBLIC, 443)
    await client.send(hello(name))
    assert await client.rest() == TLS_ALERT
    await poold.row(verdict="refused", why="bad_name", via="tls", name=name[:253].decode())


@pytest.mark.parametrize("said", [b"", b"\x16", client_hello("allowed.example")[:50]])
async def test_who_does_not_finish_the_first_words_is_let_go(
    world: World, poold: Poold, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(tunnels, "FIRST_BYTES_S", 0.2)
    await poold.rule(hosts("allowed.example"))
    client = await world.transparent(PUBLIC, 443)
    await client.send(said)
    assert await client.rest() in (b"reset", TLS_ALERT)
    await poold.row(verdict="refused", why="idle", address=PUBLIC)


async def test_who_does_not_finish_a_head_is_let_go(
    world: World, poold: Poold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "HEAD_S", 0.2)
    client = await world.explicit()
    await client.send(b"GET http://allowed.example/ HTTP/1.1\r\nX: ")
    assert b"408 Request Timeout" in await client.rest()
    await poold.row(verdict="refused", why="idle")


async def test_a_server_first_connection_may_be_silent_as_long_as_it_likes(
    world: World, poold: Poold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels, "FIRST_BYTES_S", 0.1)
    await world.serve(echo, port=22)
    await poold.rule(hosts("allowed.example", ports=(22,)))
    client = await world.transparent(str(world.door._fakes.address_of("allowed.example")), 22)
    await poold.next("open")
    await asyncio.sleep(0.3)
    await client.send(b"SSH\r\n")
    assert await client.until(b"\n") == b"SSH\r\n"
