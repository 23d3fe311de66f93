"""Packets that the rules dropped, as the kernel's log brings them.

The envelope is the kernel's; the packet in it is the guest's, cut off after its heads, and may be anything. Whatever
hook a packet was logged at, it begins with its network layer; what was before that is an attribute of its own.
"""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAX_MESSAGE_BYTES = 65536  # what `recv` has to be given room for

_PACKET = 4 << 8  # NFNL_SUBSYS_ULOG, NFULNL_MSG_PACKET
_HEAD = struct.Struct("=IHHII")
_FAMILY_BYTES = 4  # `struct nfgenmsg`
_ATTRIBUTE = struct.Struct("=HH")
_KIND_BITS = 0x3FFF
_PACKET_HEAD, _PAYLOAD, _PREFIX, _HARDWARE_HEAD = 1, 9, 10, 16

_ETHER_IPV4, _ETHER_ARP, _ETHER_IPV6 = 0x0800, 0x0806, 0x86DD
_ETHER_HEAD = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_IPV6 = struct.Struct("!IHBB16s16s")
_ARP = struct.Struct("!HHBBH6s4s6s4s")
_FRAGMENT_OFFSET = 0x1FFF
_PORTS = struct.Struct("!HH")

_NAMES = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6"}
_WITH_PORTS = (6, 17)
# Heads of IPv6 that others follow: hop by hop, routing, destination; and fragments, whose head has one size.
_MORE_HEADS = (0, 43, 60)
_FRAGMENT = 44
_MAX_HEADS = 8


@dataclass(frozen=True)
class Dropped:
    """A packet that got nowhere. What its bytes do not tell is None.

    `protocol` is tcp, udp, icmp, icmpv6, arp, `proto-N` with IP's number for another, `ether-XXXX` for what is not IP,
    or `broken`. Source and destination are addresses of the network layer; those of `ether-XXXX` are the cards'.
    """

    why: str  # what the rule says
    protocol: str
    source: str | None = None
    destination: str | None = None
    port: int | None = None  # of the destination, for tcp and udp


def read_dropped(message: bytes) -> list[Dropped]:
    """All the packets in one datagram of the kernel. Raises nothing, whatever it is; what is not understood is left."""
    return [_dropped(attributes) for attributes in _packets(message)]


def _packets(message: bytes) -> Iterator[dict[int, bytes]]:
    at = 0
    while at + _HEAD.size <= len(message):
        size, kind, *_ = _HEAD.unpack_from(message, at)
        if not _HEAD.size <= size <= len(message) - at:
            return
        if kind == _PACKET:
            yield _attributes(message[at + _HEAD.size + _FAMILY_BYTES : at + size])
        at += size + -size % 4


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if not _ATTRIBUTE.size <= size <= len(data) - at:
            break
        found[kind & _KIND_BITS] = data[at + _ATTRIBUTE.size : at + size]
        at += size + -size % 4
    return found


def _dropped(attributes: dict[int, bytes]) -> Dropped:
    why = attributes.get(_PREFIX, b"").rstrip(b"\0").decode("ascii", "replace")
    ether_type = int.from_bytes(attributes.get(_PACKET_HEAD, b"")[:2])
    payload = attributes.get(_PAYLOAD, b"")
    try:
        if ether_type == _ETHER_IPV4:
            return _ipv4(why, payload)
        if ether_type == _ETHER_IPV6:
            return _ipv6(why, payload)
        if ether_type == _ETHER_ARP:
            return _arp(why, payload)
    except struct.error:
        return Dropped(why, "broken")
    return _other(why, ether_type, attributes.get(_HARDWARE_HEAD, b""))


def _ipv4(why: str, payload: bytes) -> Dropped:
    first, _, _, _, fragment, _, protocol, _, source, destination = _IPV4.unpack_from(payload)
    ends = socket.inet_ntoa(source), socket.inet_ntoa(destination)
    size = (first & 0x0F) * 4
    is_whole = first >> 4 == 4 and size >= _IPV4.size and not fragment & _FRAGMENT_OFFSET
    return Dropped(why, _name(protocol), *ends, _port(protocol, payload[size:]) if is_whole else None)


def _ipv6(why: str, payload: bytes) -> Dropped:
    _, _, protocol, _, source, destination = _IPV6.unpack_from(payload)
    ends = socket.inet_ntop(socket.AF_INET6, source), socket.inet_ntop(socket.AF_INET6, destination)
    rest = payload[_IPV6.size :]
    for _ in range(_MAX_HEADS):
        if len(rest) < 8:
            break
        if protocol == _FRAGMENT:
            if int.from_bytes(rest[2:4]) >> 3:
                return Dropped(why, _name(rest[0]), *ends)
            protocol, rest = rest[0], rest[8:]
        elif protocol in _MORE_HEADS:
            protocol, rest = rest[0], rest[8 + rest[1] * 8 :]
        else:
            break
    return Dropped(why, _name(protocol), *ends, _port(protocol, rest))


def _arp(why: str, payload: bytes) -> Dropped:
    *_, source, _, destination = _ARP.unpack_from(payload)
    return Dropped(why, "arp", socket.inet_ntoa(source), socket.inet_ntoa(destination))


def _other(why: str, ether_type: int, head: bytes) -> Dropped:
    if len(head) < _ETHER_HEAD.size:
        return Dropped(why, f"ether-{ether_type:04x}")
    destination, source, _ = _ETHER_HEAD.unpack_from(head)
    return Dropped(why, f"ether-{ether_type:04x}", source.hex(":"), destination.hex(":"))


def _name(protocol: int) -> str:
    return _NAMES.get(protocol, f"proto-{protocol}")


def _port(protocol: int, rest: bytes) -> int | None:
    if protocol not in _WITH_PORTS or len(rest) < _PORTS.size:
        return None
    port: int = _PORTS.unpack_from(rest)[1]
    return port
