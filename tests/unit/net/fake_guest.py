"""A guest made of one file descriptor: it holds the other end of a slot's tap and speaks in frames."""

import fcntl
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from poold.net.addresses import GUEST_ADDRESS, GUEST_MAC, HOST_ADDRESS, HOST_MAC
from poold.net.namespace import inside

T = TypeVar("T")

LIMIT_S = 5.0

TCP, UDP, ICMP = 6, 17, 1
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_TCP = struct.Struct("!HHIIBBHHH")


def in_namespace(pin: Path, job: Callable[[], T]) -> T:
    """Return what `job` returns in the namespace of `pin`, on a thread that ends with it."""
    results: list[T] = []

    def work() -> None:
        with inside(pin):
            results.append(job())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[0]


@dataclass(frozen=True)
class Packet:
    """An IPv4 packet that came out of the tap, as far as the tests look at it."""

    to_mac: str
    protocol: int
    source: str
    target: str
    payload: bytes

    @property
    def tcp(self) -> tuple[int, int, int, int, int]:
        """Source port, target port, sequence number, acknowledged number, flags."""
        source, target, sequence, acknowledged, _, flags, *_ = _TCP.unpack_from(self.payload)
        return source, target, sequence, acknowledged, flags

    @property
    def icmp(self) -> tuple[int, int]:
        """Type and code."""
        return self.payload[0], self.payload[1]


class FakeGuest:
    def __init__(self, tap: int) -> None:
        self._tap = tap

    def send(self, protocol: int, target: str, payload: bytes, *, source: str = GUEST_ADDRESS) -> None:
        ends = socket.inet_aton(source), socket.inet_aton(target)
        head = _IPV4.pack(0x45, 0, 20 + len(payload), 1, 0, 64, protocol, 0, *ends)
        head = head[:10] + struct.pack("!H", _sum(head)) + head[12:]
        self.send_frame(0x0800, head + payload)

    def send_tcp(
        self,
        target: str,
        port: int,
        flags: int = SYN,
        *,
        source: str = GUEST_ADDRESS,
        source_port: int = 40000,
        numbers: tuple[int, int] = (1000, 0),
    ) -> None:
        head = _TCP.pack(source_port, port, *numbers, 5 << 4, flags, 65535, 0, 0)
        pseudo = socket.inet_aton(source) + socket.inet_aton(target) + struct.pack("!HH", TCP, len(head))
        self.send(TCP, target, head[:16] + struct.pack("!H", _sum(pseudo + head)) + head[18:], source=source)

    def send_udp(self, target: str, port: int, *, source: str = GUEST_ADDRESS) -> None:
        # A checksum of zero is allowed in IPv4 and means none.
        self.send(UDP, target, struct.pack("!HHHH", 40000, port, 8 + 5, 0) + b"hello", source=source)

    def send_ping(self, target: str) -> None:
        echo = struct.pack("!BBHHH", 8, 0, 0, 7, 1)
        self.send(ICMP, target, echo[:2] + struct.pack("!H", _sum(echo)) + echo[4:])

    def connect(self, target: str, port: int, *, source_port: int) -> None:
        """Open a connection, as far as the other side can tell."""
        self.send_tcp(target, port, source_port=source_port)
        while (answer := self.next_packet().tcp)[1] != source_port:
            pass  # of an earlier connection
        sequence = answer[2]
        self.send_tcp(target, port, ACK, source_port=source_port, numbers=(1001, sequence + 1))

    def send_frame(self, kind: int, payload: bytes, *, to_mac: str = HOST_MAC, from_mac: str = GUEST_MAC) -> None:
        os.write(self._tap, _ETHERNET.pack(_mac(to_mac), _mac(from_mac), kind) + payload)

    def wait_for_the_link(self) -> None:
        """Ask for our host's address until it answers: the kernel takes a moment to see that the tap was opened."""
        question = bytes.fromhex("0001080006040001") + _mac(GUEST_MAC) + socket.inet_aton(GUEST_ADDRESS)
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            self.send_frame(0x0806, question + bytes(6) + socket.inet_aton(HOST_ADDRESS))
            if select.select([self._tap], [], [], 0.001)[0]:
                os.read(self._tap, 65536)
                return
        raise TimeoutError("the link did not come up")

    def next_packet(self) -> Packet:
        """Return the next IPv4 packet that arrives, within the limit."""
        return self._packet_within(LIMIT_S)

    def waiting_packets(self) -> list[Packet]:
        """Return the packets that have arrived. The kernel answers a frame before the write of it returns."""
        packets = []
        while True:
            try:
                packets.append(self._packet_within(0))
            except TimeoutError:
                return packets

    def _packet_within(self, limit_s: float) -> Packet:
        deadline = time.monotonic() + limit_s
        while select.select([self._tap], [], [], max(0, deadline - time.monotonic()))[0]:
            frame = os.read(self._tap, 65536)
            to_mac, _, kind = _ETHERNET.unpack_from(frame)
            if kind == 0x0800:
                *_, protocol, _, source, target = _IPV4.unpack_from(frame, 14)
                addresses = socket.inet_ntoa(source), socket.inet_ntoa(target)
                return Packet(to_mac.hex(":"), protocol, *addresses, frame[34:])
        raise TimeoutError("nothing came out of the tap")


@contextmanager
def fake_guest(pin: Path, tap: str) -> Iterator[FakeGuest]:
    """Be the guest of a slot during the block. Opens the tap as a monitor may, without virtio headers."""
    descriptor = in_namespace(pin, lambda: os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC))
    try:
        # A tun descriptor belongs to the namespace in which it was opened.
        fcntl.ioctl(descriptor, 0x400454CA, struct.pack("16sH22x", tap.encode(), 0x0002 | 0x1000))
        guest = FakeGuest(descriptor)
        guest.wait_for_the_link()
        yield guest
    finally:
        os.close(descriptor)


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _sum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
