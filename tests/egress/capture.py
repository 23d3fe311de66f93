"""Every packet on a link, read as far as a verdict needs: who, to whom, by which protocol, and for which name."""

import contextlib
import ctypes
import ipaddress
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

ETH_P_ALL = 3
ETH_P_IP, ETH_P_IPV6, ETH_P_ARP = 0x0800, 0x86DD, 0x0806
PACKET_OUTGOING = 4
SOL_PACKET, PACKET_STATISTICS = 263, 6
SO_ATTACH_FILTER, SO_RCVBUFFORCE = 26, 33
BUFFER_BYTES = 64 << 20
SEEN_BYTES = 512  # of each packet: all headers, and a question for a name
PROTOCOLS = {1: "icmp", 2: "igmp", 6: "tcp", 17: "udp", 58: "icmpv6"}
SYN, ACK = 0x02, 0x10


@dataclass(frozen=True)
class Packet:
    """A packet that arrived."""

    protocol: str
    source: str
    destination: str
    port: int = 0  # it was meant for; of ICMP its type
    source_port: int = 0
    name: str = ""  # that it asks for, if it is a question
    is_first: bool = False  # of a TCP connection

    def __str__(self) -> str:
        asked = f" for {self.name}" if self.name else ""
        return f"{self.protocol} {self.source}:{self.source_port} -> {self.destination}:{self.port}{asked}"


class Capture:
    """What arrives on a link, from the beginning of the block on. Safe to ask from any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._packets: list[Packet] = []
        self._known: set[tuple[object, ...]] = set()
        self._lock = threading.Lock()
        self._is_over = False
        self._lost = 0

    def mark(self) -> int:
        """A point in time for `since`: all that arrived before it is counted."""
        self._drain()
        return len(self._packets)

    def since(self, mark: int = 0) -> list[Packet]:
        """What arrived behind the mark. Of a TCP connection only what is first seen of it."""
        self._drain()
        return self._packets[mark:]

    @property
    def lost(self) -> int:
        """How many packets were too many for us. A verdict needs all."""
        self._drain()
        self._lost += struct.unpack("II", self._sock.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]
        return self._lost

    def follow(self) -> None:
        """Read until the end of the block."""
        while not self._is_over:
            if select.select([self._sock], [], [], 0.2)[0]:
                self._drain()

    def end(self) -> None:
        self._is_over = True

    def _drain(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            while True:
                frame, (_, kind, direction, *_) = self._sock.recvfrom(SEEN_BYTES)
                if direction != PACKET_OUTGOING:
                    self._keep(read_packet(kind, frame))

    def _keep(self, packet: Packet) -> None:
        flow = (packet.protocol, packet.source, packet.source_port, packet.destination, packet.port)
        if packet.protocol == "tcp" and flow in self._known and not packet.is_first:
            return
        self._known.add(flow)
        self._packets.append(packet)


@contextlib.contextmanager
def open_capture(do: Callable[[Callable[[], socket.socket]], socket.socket], link: str) -> Iterator[Capture]:
    """Record what arrives on `link` during the block. `do` opens the socket where the link is."""

    def opened() -> socket.socket:
        return _packet_socket(link)

    with contextlib.closing(do(opened)) as sock:
        capture = Capture(sock)
        thread = threading.Thread(target=capture.follow)
        thread.start()
        try:
            yield capture
        finally:
            capture.end()
            thread.join()


class Sentry:
    """Looks on every link of the machine itself for packets of addresses that are only in the test's world."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._sock = _packet_socket("", _matching(networks))

    def seen(self) -> list[str]:
        """All that was there since the last time."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                frame, (link, kind, *_) = self._sock.recvfrom(SEEN_BYTES)
                found.append(f"{link}: {read_packet(kind, frame)}")
        return found

    def close(self) -> None:
        self._sock.close()


def read_packet(kind: int, frame: bytes) -> Packet:
    """A frame without its link's header."""
    try:
        if kind == ETH_P_IP:
            return _read_4(frame)
        if kind == ETH_P_IPV6:
            return _read_6(frame)
    except (struct.error, IndexError, ValueError) as error:
        return Packet(f"broken-{error}", "", "")
    return Packet("arp" if kind == ETH_P_ARP else f"ethertype-{kind:#06x}", "", "")


def _read_4(frame: bytes) -> Packet:
    header = (frame[0] & 15) * 4
    source, destination = (str(ipaddress.IPv4Address(frame[at : at + 4])) for at in (12, 16))
    if struct.unpack_from("!H", frame, 6)[0] & 0x1FFF:
        return Packet("fragment", source, destination)
    return _read_rest(frame[9], source, destination, frame[header:])


def _read_6(frame: bytes) -> Packet:
    source, destination = (str(ipaddress.IPv6Address(frame[at : at + 16])) for at in (8, 24))
    protocol, rest = frame[6], frame[40:]
    if protocol == 0:  # hop by hop: reports of multicast listeners
        protocol, rest = rest[0], rest[(rest[1] + 1) * 8 :]
    return _read_rest(protocol, source, destination, rest)


def _read_rest(number: int, source: str, destination: str, rest: bytes) -> Packet:
    protocol = PROTOCOLS.get(number, f"protocol-{number}")
    if protocol == "tcp":
        source_port, port = struct.unpack_from("!HH", rest)
        name = _asked(rest[(rest[12] >> 4) * 4 + 2 :]) if port == 53 else ""
        is_first = rest[13] & (SYN | ACK) == SYN
        return Packet(protocol, source, destination, port, source_port, name, is_first)
    if protocol == "udp":
        source_port, port = struct.unpack_from("!HH", rest)
        return Packet(protocol, source, destination, port, source_port, _asked(rest[8:]) if port == 53 else "")
    return Packet(protocol, source, destination, rest[0] if protocol.startswith("icmp") else 0)


def _asked(question: bytes) -> str:
    """The name in a question."""
    labels, at = [], 12
    while len(question) > at and 0 < question[at] < 64:
        labels.append(question[at + 1 : at + 1 + question[at]].decode("latin-1"))
        at += 1 + question[at]
    return ".".join(labels).lower()


def _packet_socket(link: str, program: Sequence[tuple[int, int, int, int]] = ()) -> socket.socket:
    """A socket that gets every packet of a link, or of all links if it is not named, and those of a program only."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0 if link else socket.htons(ETH_P_ALL))
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    if program:
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
        wanted = struct.pack("HL", len(program), ctypes.addressof(code))
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, wanted)
    if link:
        sock.bind((link, ETH_P_ALL))
    with contextlib.suppress(BlockingIOError):  # what came before the filter
        while not link:
            sock.recv(1)
    return sock


def _matching(networks: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """A filter of the kernel for packets from or to these networks. It begins at the network's header."""
    load, mask, is_equal, give = 0x20, 0x54, 0x15, 0x06
    steps: list[tuple[int, int, int, int]] = []
    for network in map(ipaddress.ip_network, networks):
        width = min(network.prefixlen, 32)
        bits = (0xFFFFFFFF << (32 - width)) & 0xFFFFFFFF
        wanted = int.from_bytes(network.network_address.packed[:4], "big") & bits
        for at in (12, 16) if network.version == 4 else (8, 24):
            steps += [(load, 0, 0, at), (mask, 0, 0, bits), (is_equal, 0, 1, wanted), (give, 0, 0, SEEN_BYTES)]
    return [*steps, (give, 0, 0, 0)]
