"""What passes between a guest and the host, seen from both ends of a real tap."""

import contextlib
import errno
import select
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from poold.egress.wire.packets import read_dropped
from poold.net import GUEST_ADDRESS, GUEST_MAC, HOST_ADDRESS, Slots, open_slots
from poold.net.nft import run_nft
from poold.slots import Slot
from tests.unit.net.fake_guest import ACK, ICMP, RST, SYN, TCP, FakeGuest, fake_guest, in_namespace

ELSEWHERE = "8.8.8.8"


@dataclass
class Pair:
    slots: Slots
    slot: Slot
    guest: FakeGuest

    def counted(self, name: str) -> int:
        listed = in_namespace(self.slot.netns, lambda: run_nft(f"list counter inet warren {name}"))
        return int(listed.split("packets ")[1].split()[0])


@pytest.fixture
async def pair(run_dir: Path) -> AsyncIterator[Pair]:
    async with open_slots(run_dir, count=1, base_uid=200_000) as slots:
        slot = slots.take_nowait()
        with fake_guest(slot.netns, slot.tap) as guest:
            yield Pair(slots, slot, guest)


@pytest.fixture
async def spare(run_dir: Path) -> AsyncIterator[Slot]:
    """A slot whose tap nobody has opened."""
    async with open_slots(run_dir, count=1, base_uid=200_000) as slots:
        yield slots.take_nowait()


@pytest.mark.parametrize("target", [ELSEWHERE, HOST_ADDRESS, "10.0.0.1", "169.254.169.254"])
def test_a_tcp_connection_of_a_guest_without_a_proxy_is_reset_at_once(pair: Pair, target: str) -> None:
    pair.guest.send_tcp(target, 443)
    answer = pair.guest.next_packet()
    assert (answer.protocol, answer.source, answer.target) == (TCP, target, GUEST_ADDRESS)
    assert answer.tcp == (443, 40000, 0, 1001, RST | ACK)


def test_every_datagram_of_the_guest_is_refused_at_once(pair: Pair) -> None:
    # More than the kernel by itself would answer in one second.
    for port in range(20):
        pair.guest.send_udp(ELSEWHERE, 54 + port)
        answer = pair.guest.next_packet()
        assert (answer.protocol, answer.icmp) == (ICMP, (3, 13))
    assert pair.counted("refused") == 20


@pytest.mark.parametrize("target", [ELSEWHERE, HOST_ADDRESS])
def test_a_ping_of_the_guest_is_refused(pair: Pair, target: str) -> None:
    pair.guest.send_ping(target)
    assert pair.guest.next_packet().icmp == (3, 13)


def test_a_flood_of_the_guest_is_answered_only_up_to_the_limit(pair: Pair) -> None:
    for port in range(1000):
        pair.guest.send_tcp(ELSEWHERE, 1000 + port)
    answered = len(pair.guest.waiting_packets())
    assert 500 <= answered < 950
    assert pair.counted("refused") > 0


def test_last_words_of_the_guests_server_are_answered_only_up_to_the_limit(pair: Pair) -> None:
    answered = 0
    for _ in range(1000):
        pair.guest.send_tcp(HOST_ADDRESS, 5555, ACK, source_port=1024)
        answered += len(pair.guest.waiting_packets())
    assert 100 <= answered < 900


async def test_a_flood_of_questions_reaches_the_proxy_only_up_to_the_limit(pair: Pair) -> None:
    """Also when its first ones were answered: then the kernel takes the rest for a conversation."""
    sockets = await pair.slots.proxy_sockets(pair.slot)
    came = 0
    try:
        pair.guest.send_udp(ELSEWHERE, 53)
        _, whence = sockets.names_udp.recvfrom(100)
        sockets.names_udp.sendto(b"answer", whence)
        for _ in range(5000):
            pair.guest.send_udp(ELSEWHERE, 53)
            came += select.select([sockets.names_udp], [], [], 0) != ([], [], [])
            with contextlib.suppress(BlockingIOError):
                sockets.names_udp.recv(100)
    finally:
        sockets.close()
    assert 300 <= came < 4000


def neighbour_solicitation() -> bytes:
    head = bytes.fromhex("6000000000203aff") + socket.inet_pton(socket.AF_INET6, "fe80::2")
    return head + socket.inet_pton(socket.AF_INET6, "ff02::1") + bytes.fromhex("8700000000000000") + bytes(24)


@pytest.mark.parametrize(
    "send",
    [
        lambda guest: guest.send_tcp(HOST_ADDRESS, 80, source="172.16.0.7"),
        lambda guest: guest.send_tcp(HOST_ADDRESS, 80, source="127.0.0.1"),
        lambda guest: guest.send_tcp(ELSEWHERE, 80, source=HOST_ADDRESS),
        lambda guest: guest.send_udp(ELSEWHERE, 53, source="0.0.0.0"),
        lambda guest: guest.send_frame(0x86DD, neighbour_solicitation(), to_mac="33:33:00:00:00:01"),
        lambda guest: guest.send_frame(0x88CC, bytes(40)),
        lambda guest: guest.send_tcp(ELSEWHERE, 80, RST),
    ],
    ids=["foreign", "loopback", "ours", "nobody", "ipv6", "lldp", "reset"],
)
def test_what_is_not_a_guests_to_send_is_dropped_without_an_answer(
    pair: Pair, send: Callable[[FakeGuest], None]
) -> None:
    send(pair.guest)
    assert pair.guest.waiting_packets() == []
    # And it did not close its ears.
    pair.guest.send_tcp(ELSEWHERE, 443)
    assert pair.guest.next_packet().tcp[0] == 443


def test_nothing_that_the_guest_sends_reaches_a_listener(pair: Pair) -> None:
    def listen(kind: socket.SocketKind) -> socket.socket:
        sock = socket.socket(socket.AF_INET, kind | socket.SOCK_NONBLOCK)
        sock.bind(("0.0.0.0", 0))
        if kind == socket.SOCK_STREAM:
            sock.listen()
        return sock

    with (
        in_namespace(pair.slot.netns, lambda: listen(socket.SOCK_STREAM)) as streams_inside,
        in_namespace(pair.slot.netns, lambda: listen(socket.SOCK_DGRAM)) as datagrams_inside,
        listen(socket.SOCK_STREAM) as streams_outside,
        listen(socket.SOCK_DGRAM) as datagrams_outside,
    ):
        for target in (HOST_ADDRESS, "127.0.0.1"):
            for listener in (streams_inside, streams_outside):
                pair.guest.send_tcp(target, listener.getsockname()[1])
            for listener in (datagrams_inside, datagrams_outside):
                pair.guest.send_udp(target, listener.getsockname()[1])
        assert all(packet.protocol == ICMP or packet.tcp[4] & RST for packet in pair.guest.waiting_packets())
        for listener in (streams_inside, streams_outside):
            with pytest.raises(BlockingIOError):
                listener.accept()
        for listener in (datagrams_inside, datagrams_outside):
            with pytest.raises(BlockingIOError):
                listener.recv(100)


async def test_the_host_connects_to_the_guest(pair: Pair) -> None:
    with await pair.slots.socket_in(pair.slot) as sock:
        assert sock.connect_ex((GUEST_ADDRESS, 1024)) == errno.EINPROGRESS
        knock = pair.guest.next_packet()
        port, target, sequence, _, flags = knock.tcp
        assert (knock.to_mac, knock.source, knock.target) == (GUEST_MAC, HOST_ADDRESS, GUEST_ADDRESS)
        assert (target, flags & (SYN | ACK)) == (1024, SYN)

        pair.guest.send_tcp(HOST_ADDRESS, port, SYN | ACK, source_port=1024, numbers=(5000, sequence + 1))
        assert pair.guest.next_packet().tcp == (port, 1024, sequence + 1, 5001, ACK)
        assert sock.getpeername() == (GUEST_ADDRESS, 1024)


async def test_a_guest_that_refuses_is_heard_at_once(pair: Pair) -> None:
    with await pair.slots.socket_in(pair.slot) as sock:
        assert sock.connect_ex((GUEST_ADDRESS, 1024)) == errno.EINPROGRESS
        port, _, sequence, *_ = pair.guest.next_packet().tcp
        pair.guest.send_tcp(HOST_ADDRESS, port, RST | ACK, source_port=1024, numbers=(0, sequence + 1))
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
        assert pair.counted("refused") == 0


async def test_the_host_side_reaches_nothing_but_the_guest(pair: Pair) -> None:
    for target in (ELSEWHERE, HOST_ADDRESS, "127.0.0.1"):
        with await pair.slots.socket_in(pair.slot) as sock:
            sock.connect_ex((target, 80))
            state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            assert state != 1, f"connected to {target}"


OPEN_TAP = """
import ctypes, fcntl, os, struct, sys
netns, uid = sys.argv[1], int(sys.argv[2])
assert ctypes.CDLL(None).setns(os.open(netns, os.O_RDONLY), 0) == 0
tun = os.open("/dev/net/tun", os.O_RDWR)
os.setgid(uid)
os.setuid(uid)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"tap0", 0x5002))
"""


def test_only_the_user_of_the_slot_may_open_its_tap(spare: Slot) -> None:
    def opens(uid: int) -> bool:
        argv = [sys.executable, "-c", OPEN_TAP, str(spare.netns), str(uid)]
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
        assert done.returncode == 0 or "PermissionError" in done.stderr
        return done.returncode == 0

    assert opens(spare.uid)
    assert not opens(spare.uid + 1)


async def test_what_a_guest_sends_by_tcp_or_asks_of_a_name_server_comes_to_its_proxy(pair: Pair) -> None:
    sockets = await pair.slots.proxy_sockets(pair.slot)
    try:
        targets = {"8.8.8.8": 443, HOST_ADDRESS: 22, "169.254.169.254": 80}
        for number, (target, port) in enumerate(targets.items()):
            pair.guest.connect(target, port, source_port=41000 + number)
            assert original_target(sockets.transparent) == (target, port)
        pair.guest.connect(HOST_ADDRESS, 3128, source_port=42000)
        sockets.explicit.accept()[0].close()
        pair.guest.connect("9.9.9.9", 53, source_port=42001)
        sockets.names_tcp.accept()[0].close()
        pair.guest.send_udp("9.9.9.9", 53)
        assert sockets.names_udp.recvfrom(100)[0] == b"hello"
    finally:
        sockets.close()


def original_target(listener: socket.socket) -> tuple[str, int]:
    """Where a connection that was redirected to `listener` was meant to go."""
    with listener.accept()[0] as connection:
        raw = connection.getsockopt(socket.SOL_IP, 80, 16)  # SO_ORIGINAL_DST
    return socket.inet_ntoa(raw[4:8]), int.from_bytes(raw[2:4], "big")


async def test_a_proxy_hears_of_every_kind_of_packet_that_is_dropped(pair: Pair) -> None:
    sockets = await pair.slots.proxy_sockets(pair.slot)
    try:
        pair.guest.send_udp(ELSEWHERE, 4433)
        pair.guest.send_ping(ELSEWHERE)
        pair.guest.send(132, ELSEWHERE, bytes(12))
        pair.guest.send_tcp(ELSEWHERE, 80, source="10.1.2.3")
        pair.guest.send_frame(0x86DD, neighbour_solicitation(), to_mac="33:33:00:00:00:01")
        pair.guest.send_frame(0x88CC, bytes(40))
        pair.guest.send_frame(0x0806, bytes.fromhex("0001080006040002") + bytes(20))
        pair.guest.send_frame(0x0800, bytes(20), from_mac="02:00:00:00:00:09")
        heard: list[str] = []
        while len(heard) < 8 and select.select([sockets.packets], [], [], 5)[0]:
            heard += [dropped.why for dropped in read_dropped(sockets.packets.recv(65536))]
        assert sorted(heard) == ["arp", "icmp", "ip-spoof", "ipv6", "mac-spoof", "protocol", "protocol", "udp"]
    finally:
        sockets.close()


def test_the_rules_drop_by_default_and_one_chain_redirects(pair: Pair) -> None:
    listed = in_namespace(pair.slot.netns, lambda: run_nft("list ruleset"))
    assert listed.count("policy drop") == listed.count("type filter hook ") == 5
    assert listed.count("policy accept") == listed.count("type nat hook ") == 1
