"""Packets made by hand: what root in a guest can put on its wire, in every layer."""

import ipaddress
import struct

GUEST, OUR_SIDE = "172.16.0.2", "172.16.0.1"
GUEST_MAC, OUR_MAC = "02:57:41:52:00:02", "02:57:41:52:00:01"
BROADCAST_MAC = "ff:ff:ff:ff:ff:ff"
SYN, RST, PSH, ACK = 2, 4, 8, 16
IPV4, ARP, VLAN, IPV6 = 0x0800, 0x0806, 0x8100, 0x86DD


def ethernet(payload: bytes, kind: int = IPV4, *, source: str = GUEST_MAC, destination: str = OUR_MAC) -> bytes:
    return _mac(destination) + _mac(source) + struct.pack("!H", kind) + payload


def ipv4(
    destination: str,
    protocol: int,
    payload: bytes,
    *,
    source: str = GUEST,
    ttl: int = 64,
    options: bytes = b"",
    fragment: int = 0,
) -> bytes:
    """`fragment`: the field with its flags, 0x2000 for more to come and the offset in eights."""
    words = 5 + len(options) // 4
    head = struct.pack(
        "!BBHHHBBH4s4s",
        0x40 | words,
        0,
        words * 4 + len(payload),
        0x1234,
        fragment,
        ttl,
        protocol,
        0,
        _packed(source),
        _packed(destination),
    )
    head += options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def ipv6(
    destination: str, protocol: int, payload: bytes, *, source: str = "fe80::57:41ff:fe52:2", hops: int = 64
) -> bytes:
    head = struct.pack("!IHBB", 6 << 28, len(payload), protocol, hops)
    return head + _packed(source) + _packed(destination) + payload


def udp(
    destination: str, port: int, payload: bytes, *, source: str = GUEST, source_port: int = 40_000, **more: int
) -> bytes:
    """A whole packet of IPv4 or IPv6, by its address."""
    rest = struct.pack("!HHHH", source_port, port, 8 + len(payload), 0) + payload
    return _whole(destination, 17, rest, 6, source, **more)


def tcp(
    destination: str,
    port: int,
    flags: int = SYN,
    payload: bytes = b"",
    *,
    source: str = GUEST,
    source_port: int = 40_001,
    options: bytes = b"",
) -> bytes:
    rest = struct.pack("!HHIIBBHHH", source_port, port, 1000, 1 if flags & ACK else 0, 0x50, flags, 64_000, 0, 0)
    return _whole(destination, 6, rest + payload, 16, source, options=options)


def icmp(destination: str, kind: int, code: int = 0, rest: bytes = b"\0\1\0\1ping", *, source: str = GUEST) -> bytes:
    message = struct.pack("!BBH", kind, code, 0) + rest
    return ipv4(destination, 1, message[:2] + struct.pack("!H", checksum(message)) + message[4:], source=source)


def icmpv6(destination: str, kind: int, rest: bytes, *, source: str = "fe80::57:41ff:fe52:2") -> bytes:
    message = struct.pack("!BBH", kind, 0, 0) + rest
    return ipv6(destination, 58, _summed(source, destination, 58, message, 2), source=source, hops=255)


def arp(operation: int, sender: str, sender_mac: str, target: str, target_mac: str = "00:00:00:00:00:00") -> bytes:
    head = struct.pack("!HHBBH", 1, IPV4, 6, 4, operation)
    return head + _mac(sender_mac) + _packed(sender) + _mac(target_mac) + _packed(target)


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def question(name: str | bytes, kind: int = 1, *, flags: int = 0x0100, count: int = 1) -> bytes:
    """Who is `name`? As bytes the name is put in as it is."""
    labels = name if isinstance(name, bytes) else b"".join(_label(label) for label in name.split(".")) + b"\0"
    return struct.pack("!HHHHHH", 0xABCD, flags, count, 0, 0, 0) + (labels + struct.pack("!HH", kind, 1)) * count


def _label(label: str) -> bytes:
    data = label.encode("latin-1")
    return bytes([len(data)]) + data


def _whole(
    destination: str, protocol: int, rest: bytes, at: int, source: str, *, options: bytes = b"", ttl: int = 64
) -> bytes:
    rest = _summed(source, destination, protocol, rest, at)
    if ":" in destination:
        return ipv6(destination, protocol, rest, source=source)
    return ipv4(destination, protocol, rest, source=source, options=options, ttl=ttl)


def _summed(source: str, destination: str, protocol: int, rest: bytes, at: int) -> bytes:
    pseudo = _packed(source) + _packed(destination) + struct.pack("!II", len(rest), protocol)
    return rest[:at] + struct.pack("!H", checksum(pseudo + rest)) + rest[at + 2 :]


def _packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))
