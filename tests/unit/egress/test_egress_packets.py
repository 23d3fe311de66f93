"""Dropped packets, as a real kernel tells of them and as nobody should."""

import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.egress.wire.packets import MAX_MESSAGE_BYTES, Dropped, read_dropped
from poold.errors import NetError
from poold.net.namespace import fresh
from poold.net.nflog import open_nflog
from poold.net.nft import run_nft

ROOT = Path(__file__).parents[3]
LIMIT_S = 5.0
GUEST, WORLD = "172.16.0.2", "192.0.2.7"
GUEST_6, WORLD_6 = "fe80::2", "2001:db8::7"
UDP = struct.pack("!HHHH", 4000, 9999, 8, 0)
TCP = struct.pack("!HHIIBBHHH", 4000, 443, 1, 0, 0x50, 2, 100, 0, 0)
PING = b"\x08\0\xf7\xff\0\0\0\0"


def ipv4(protocol: int, payload: bytes, *, fragment: int = 0, options: bytes = b"") -> bytes:
    size = 20 + len(options)
    ends = socket.inet_aton(GUEST), socket.inet_aton(WORLD)
    total = size + len(payload)
    head = struct.pack("!BBHHHBBH4s4s", 0x40 | size // 4, 0, total, 1, fragment, 64, protocol, 0, *ends) + options
    total = sum(struct.unpack(f"!{size // 2}H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return head[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + head[12:] + payload


def ipv6(protocol: int, payload: bytes) -> bytes:
    ends = socket.inet_pton(socket.AF_INET6, GUEST_6), socket.inet_pton(socket.AF_INET6, WORLD_6)
    return struct.pack("!IHBB16s16s", 6 << 28, len(payload), protocol, 64, *ends) + payload


def arp(wanted: str) -> bytes:
    ends = b"\2\0\0\0\0\2", socket.inet_aton(GUEST), bytes(6), socket.inet_aton(wanted)
    return struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, *ends)


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def message(ether_type: int, payload: bytes, *, prefix: bytes = b"udp\0", head: bytes = b"") -> bytes:
    body = b"\2\0\0\1" + attribute(1, struct.pack("!HBx", ether_type, 0)) + attribute(10, prefix)
    body += (attribute(16, head) if head else b"") + attribute(9, payload)
    return struct.pack("=IHHII", 16 + len(body), 4 << 8, 0, 0, 0) + body + bytes(-len(body) % 4)


def dropped(ether_type: int, payload: bytes) -> Dropped:
    (one,) = read_dropped(message(ether_type, payload))
    return one


def test_several_packets_come_in_one_message() -> None:
    done = struct.pack("=IHHII", 20, 3, 0, 0, 0) + bytes(4)
    both = message(0x0800, ipv4(17, UDP)) + message(0x0806, arp("172.16.0.9"), prefix=b"arp\0") + done
    assert read_dropped(both) == [
        Dropped("udp", "udp", GUEST, WORLD, 9999),
        Dropped("arp", "arp", GUEST, "172.16.0.9"),
    ]


@pytest.mark.parametrize(
    ("payload", "protocol", "port"),
    [
        (ipv4(6, TCP), "tcp", 443),
        (ipv4(6, TCP, options=bytes(4)), "tcp", 443),
        (ipv4(17, UDP[:3]), "udp", None),
        (ipv4(17, UDP, fragment=1), "udp", None),
        (ipv4(17, UDP, fragment=0x2000), "udp", 9999),  # the first of several
        (ipv4(1, PING), "icmp", None),
        (ipv4(47, bytes(8)), "proto-47", None),
        (b"\x41" + ipv4(17, UDP)[1:], "udp", None),
        (b"\x65" + ipv4(17, UDP)[1:], "udp", None),
    ],
)
def test_packets_of_ipv4(payload: bytes, protocol: str, port: int | None) -> None:
    assert dropped(0x0800, payload) == Dropped("udp", protocol, GUEST, WORLD, port)


@pytest.mark.parametrize(
    ("payload", "protocol", "port"),
    [
        (ipv6(17, UDP), "udp", 9999),
        (ipv6(58, PING), "icmpv6", None),
        (ipv6(0, bytes([60, 1]) + bytes(14) + bytes([6, 0]) + bytes(6) + TCP), "tcp", 443),
        (ipv6(44, bytes([17, 0, 0, 1]) + bytes(4) + UDP), "udp", 9999),
        (ipv6(44, bytes([17, 0, 0, 8]) + bytes(4) + UDP), "udp", None),
        (ipv6(0, bytes([0, 0]) + bytes(6)) + bytes(8) * 20, "proto-0", None),
        (ipv6(43, bytes([6, 255])), "proto-43", None),
        (ipv6(43, bytes([6, 255]) + bytes(6)), "tcp", None),
    ],
)
def test_packets_of_ipv6(payload: bytes, protocol: str, port: int | None) -> None:
    assert dropped(0x86DD, payload) == Dropped("udp", protocol, GUEST_6, WORLD_6, port)


@pytest.mark.parametrize("ether_type", [0x0800, 0x86DD, 0x0806])
def test_a_packet_that_is_cut_off_is_broken(ether_type: int) -> None:
    assert dropped(ether_type, b"\x45" * 9) == Dropped("udp", "broken")


def test_what_is_no_packet_of_ip_is_told_with_its_cards() -> None:
    head = bytes.fromhex("020000000001020000000002") + b"\x88\xb5"
    assert read_dropped(message(0x88B5, b"x", head=head)) == [
        Dropped("udp", "ether-88b5", "02:00:00:00:00:02", "02:00:00:00:00:01")
    ]
    assert read_dropped(message(0x88B5, b"x", head=head[:9])) == [Dropped("udp", "ether-88b5")]


def test_a_message_without_anything_is_a_packet_of_which_nothing_is_known() -> None:
    assert read_dropped(struct.pack("=IHHII", 20, 4 << 8, 0, 0, 0) + bytes(4)) == [Dropped("", "ether-0000")]


hostile = st.one_of(
    st.binary(max_size=300),
    st.builds(message, st.sampled_from([0x0800, 0x0806, 0x86DD, 0x8100]), st.binary(max_size=140)),
    st.binary(max_size=100).map(lambda data: struct.pack("=IHHII", 16 + len(data), 4 << 8, 0, 0, 0) + data),
)


@given(hostile, st.integers(0, 400))
def test_whatever_comes_it_raises_nothing(data: bytes, size: int) -> None:
    assert len(read_dropped(data[:size])) <= len(data) // 16


RULES = """
table inet warren {
    chain from_guest {
        type filter hook prerouting priority filter; policy accept;
        iifname != "v0" accept
        meta l4proto udp log prefix "udp" group 1 drop
        meta l4proto icmp log prefix "icmp" group 1 drop
        meta l4proto tcp log prefix "tcp" group 1 drop
        log prefix "protocol" group 1 drop
    }
}
table netdev warren {
    chain frames {
        type filter hook ingress device "v0" priority -500; policy accept;
        ether saddr != 02:00:00:00:00:02 log prefix "mac-spoof" group 1 drop
        ether type arp log prefix "arp" group 1 drop
        # Here, because where IPv6 is switched off the kernel drops its packets before any later hook, and tells nobody.
        ether type ip6 log prefix "ipv6" group 1 drop
        ether type != ip log prefix "protocol" group 1 drop
    }
}
"""

OURS, THEIRS = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")


def elsewhere(job: Callable[[], None]) -> None:
    """Do `job` in a new namespace, on a thread that ends with it."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with fresh():
                job()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def told(nflog: socket.socket, frame: bytes) -> list[Dropped]:
    """What the kernel tells when `frame` arrives at `v0`."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as card:
        card.bind(("v1", 0))
        card.send(frame)
    assert select.select([nflog], [], [], LIMIT_S)[0], "the kernel told nothing"
    return read_dropped(nflog.recv(MAX_MESSAGE_BYTES))


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def lay_wire() -> None:
    """Two cards, `v1` of the guest and `v0` of ours, with rules at the second and nothing to say for themselves."""
    ip("link", "add", "v0", "address", OURS.hex(":"), "type", "veth", "peer", "name", "v1")
    for name in ("v0", "v1"):
        Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
        ip("link", "set", name, "up")
    run_nft(RULES)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_real_kernel_tells_of_each_kind_of_packet_that_its_rules_drop() -> None:
    frames = {
        (0x0800, ipv4(17, UDP)): Dropped("udp", "udp", GUEST, WORLD, 9999),
        (0x0800, ipv4(1, PING)): Dropped("icmp", "icmp", GUEST, WORLD),
        (0x0800, ipv4(6, TCP)): Dropped("tcp", "tcp", GUEST, WORLD, 443),
        (0x0800, ipv4(47, bytes(8))): Dropped("protocol", "proto-47", GUEST, WORLD),
        (0x0806, arp("172.16.0.9")): Dropped("arp", "arp", GUEST, "172.16.0.9"),
        (0x86DD, ipv6(17, UDP)): Dropped("ipv6", "udp", GUEST_6, WORLD_6, 9999),
        (0x86DD, ipv6(58, PING)): Dropped("ipv6", "icmpv6", GUEST_6, WORLD_6),
        (0x88B5, b"hello there" * 3): Dropped("protocol", "ether-88b5", THEIRS.hex(":"), OURS.hex(":")),
    }

    def job() -> None:
        lay_wire()
        with open_nflog(1) as nflog:
            for (ether_type, payload), expected in frames.items():
                frame = OURS + THEIRS + ether_type.to_bytes(2) + payload
                assert told(nflog, frame) == [expected]
            spoofed = OURS + OURS + b"\x08\0" + ipv4(17, UDP)
            assert told(nflog, spoofed) == [Dropped("mac-spoof", "udp", GUEST, WORLD, 9999)]
            long = OURS + THEIRS + b"\x08\0" + ipv4(17, UDP + bytes(1200))
            assert told(nflog, long) == [Dropped("udp", "udp", GUEST, WORLD, 9999)]

    elsewhere(job)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_group_has_one_listener() -> None:
    def job() -> None:
        with open_nflog(1) as first:
            with pytest.raises(NetError, match="nflog group 1"):
                open_nflog(1)
            open_nflog(2).close()
            with pytest.raises(BlockingIOError):
                first.recv(1)
        open_nflog(1).close()

    elsewhere(job)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_flood_that_nobody_reads_is_lost_in_part_and_breaks_nothing() -> None:
    def job() -> None:
        lay_wire()
        with open_nflog(1) as nflog, socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as card:
            card.bind(("v1", 0))
            for _ in range(20_000):
                card.send(OURS + THEIRS + b"\x08\0" + ipv4(17, UDP))
            seen = 0
            while select.select([nflog], [], [], 0.5)[0]:
                seen += len(read_dropped(nflog.recv(MAX_MESSAGE_BYTES)))
            assert 0 < seen < 20_000
            assert told(nflog, OURS + THEIRS + b"\x08\0" + ipv4(1, PING)) == [Dropped("icmp", "icmp", GUEST, WORLD)]

    elsewhere(job)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_process_without_rights_may_read_it_anywhere() -> None:
    program = f"""
import os, select, socket, sys
from poold.egress.wire.packets import read_dropped
os.setgid(65534)
os.setuid(65534)
nflog = socket.socket(fileno=int(sys.argv[1]))
print("ready", flush=True)
select.select([nflog], [], [], {LIMIT_S})
print(read_dropped(nflog.recv(65536))[0].port)
"""

    def job() -> None:
        lay_wire()
        with open_nflog(1) as nflog, socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as card:
            card.bind(("v1", 0))
            argv = ["unshare", "--net", sys.executable, "-c", program, str(nflog.fileno())]
            with subprocess.Popen(
                argv, pass_fds=[nflog.fileno()], stdout=subprocess.PIPE, text=True, cwd=ROOT
            ) as reader:
                assert reader.stdout is not None
                assert reader.stdout.readline() == "ready\n"
                card.send(OURS + THEIRS + b"\x08\0" + ipv4(17, UDP))
                assert reader.stdout.readline() == "9999\n"

    elsewhere(job)
