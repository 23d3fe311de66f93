"""The names of the test's internet, and who answers for them: on every address, to whoever asks.

All names are of `example.com` and `example.net`. Some lead where no name should, some change their minds.
"""

import contextlib
import ipaddress
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from tests.egress.world import HOST_4, HOST_6, HOST_PRIVATE

METADATA = "169.254.169.254"
METADATA_6 = "fd00:ec2::254"
WEB = "93.184.215.10"
WEB_6 = "2600:1f18:94::6"
OTHER = "93.184.215.11"
WILD = "93.184.215.12"
SOCKETS = "93.184.215.23"
SSH = "93.184.215.30"
CLAIMS = tuple((f"c{number}.example.com", f"93.184.215.{100 + number}") for number in range(16))

ADDRESSES: dict[str, tuple[str, ...]] = {
    "web.example.com": (WEB,),
    "www.example.com": (WEB,),
    "evil.example.net": (WEB,),  # who fronts for it is at the same address
    "other.example.com": (OTHER,),
    "six.example.com": (WEB_6,),
    "pip.example.com": ("93.184.215.20",),
    "mirror.example.com": ("10.0.0.5",),  # of the host's own network
    "git.example.com": ("93.184.215.21",),
    "apt.example.com": ("93.184.215.22",),
    "ws.example.com": (SOCKETS,),
    "big.example.com": ("93.184.215.24",),
    "ssh.example.com": (SSH,),
    "doh.example.com": ("1.1.1.1",),
    "a.w.example.com": (WILD,),
    "b.w.example.com": (WILD,),
    "host.example.com": (HOST_4,),
    "host6.example.com": (HOST_6,),
    "office.example.com": (HOST_PRIVATE,),
    "metadata.example.com": (METADATA,),
    "metadata6.example.com": (METADATA_6,),
    "mapped.example.com": (f"::ffff:{METADATA}",),
    "nat64.example.com": ("64:ff9b::a9fe:a9fe",),
    "6to4.example.com": ("2002:a9fe:a9fe::1",),
    "169-254-169-254.nip.example.com": (METADATA,),
    "loopback.example.com": ("127.0.0.1",),
    "loopback6.example.com": ("::1",),
    "zero.example.com": ("0.0.0.0",),
    "private.example.com": ("10.0.0.5",),
    "cgnat.example.com": ("100.64.0.1",),
    "many.example.com": ("224.0.0.1",),
    "both.example.com": (METADATA, WEB),
    **{name: (address,) for name, address in CLAIMS},
}
ALIASES = {"alias.example.com": "alias2.example.com", "alias2.example.com": "metadata.example.com"}
# What they lead to the first time, and from then on.
FICKLE = {
    "rebind-metadata.example.com": (WEB, METADATA),
    "rebind-loopback.example.com": (WEB, "127.0.0.1"),
    "rebind-private.example.com": (WEB, "10.0.0.5"),
    "rebind-host.example.com": (WEB, HOST_4),
}
KIND_A, KIND_CNAME, KIND_AAAA = 1, 5, 28
NXDOMAIN = 3
IP_PKTINFO = 8


class Zone:
    """Answers questions. Remembers each: its name and its kind."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.addresses = dict(ADDRESSES)
        self._times: Counter[str] = Counter()

    def begin_again(self) -> None:
        """The fickle names are as they were in the beginning."""
        self._times.clear()

    def answer(self, packet: bytes) -> bytes:
        number, flags = struct.unpack_from("!HH", packet)
        name, end = _name(packet, 12)
        kind = int.from_bytes(packet[end : end + 2], "big")
        self.asked.append((name, kind))
        records = self._records(name, kind)
        code = 0 if records or name in self.addresses or name in FICKLE else NXDOMAIN
        head = struct.pack("!HHHHHH", number, 0x8580 | (flags & 0x0100) | code, 1, len(records), 0, 0)
        return head + packet[12 : end + 4] + b"".join(records)

    def _records(self, name: str, kind: int) -> list[bytes]:
        if name in ALIASES:
            alias = _record(name, KIND_CNAME, _labels(ALIASES[name]))
            return [alias, *self._records(ALIASES[name], kind)]
        addresses = [ipaddress.ip_address(address) for address in self._addresses(name, kind)]
        version = {KIND_A: 4, KIND_AAAA: 6}.get(kind)
        return [_record(name, kind, address.packed) for address in addresses if address.version == version]

    def _addresses(self, name: str, kind: int) -> Sequence[str]:
        if name in FICKLE:
            self._times[name] += kind == KIND_A
            return [FICKLE[name][self._times[name] > 1]]
        return self.addresses.get(name, ())


@contextlib.contextmanager
def open_zone(do: Callable[[Callable[[], socket.socket]], socket.socket]) -> Iterator[Zone]:
    """Answer on port 53 of every address during the block. `do` opens sockets where that is."""
    zone = Zone()
    with contextlib.ExitStack() as stack:
        datagrams = stack.enter_context(contextlib.closing(do(_datagram_socket)))
        stream = stack.enter_context(do(lambda: socket.create_server(("0.0.0.0", 53))))
        threads = [
            threading.Thread(target=_serve_datagrams, args=[zone, datagrams]),
            threading.Thread(target=_serve_streams, args=[zone, stream]),
        ]
        for thread in threads:
            thread.start()
        try:
            yield zone
        finally:
            for sock in (datagrams, stream):
                with contextlib.suppress(OSError):  # it never had a peer
                    sock.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def _datagram_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    sock.bind(("0.0.0.0", 53))
    return sock


def _serve_datagrams(zone: Zone, sock: socket.socket) -> None:
    """Each answer comes from the address that was asked."""
    while True:
        packet, extra, _, peer = sock.recvmsg(4096, 256)
        if not packet:
            return
        said = _answered(zone, packet)
        if said:
            (_, _, info), *_ = extra
            _, _, asked = struct.unpack("I4s4s", info)
            source = struct.pack("I4s4s", 0, asked, bytes(4))
            sock.sendmsg([said], [(socket.IPPROTO_IP, IP_PKTINFO, source)], 0, peer)


def _serve_streams(zone: Zone, listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            connection.settimeout(2)
            packet = connection.recv(4096)[2:]
            said = _answered(zone, packet)
            connection.sendall(struct.pack("!H", len(said)) + said)


def _answered(zone: Zone, packet: bytes) -> bytes:
    try:
        return zone.answer(packet)
    except (struct.error, IndexError, UnicodeDecodeError):
        return b""


def _name(packet: bytes, at: int) -> tuple[str, int]:
    labels = []
    while length := packet[at]:
        labels.append(packet[at + 1 : at + 1 + length].decode("ascii").lower())
        at += 1 + length
    return ".".join(labels), at + 1


def _labels(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def _record(name: str, kind: int, data: bytes) -> bytes:
    return _labels(name) + struct.pack("!HHIH", kind, 1, 0, len(data)) + data
