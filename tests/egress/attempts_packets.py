"""Attempts by packet: all that is neither TCP nor a question for a name, and all that lies about itself."""

import struct

from tests.egress.attempts import Attempt, Row, text
from tests.egress.frames import (
    ACK,
    ARP,
    BROADCAST_MAC,
    GUEST,
    GUEST_MAC,
    IPV6,
    OUR_MAC,
    OUR_SIDE,
    RST,
    VLAN,
    arp,
    ethernet,
    icmp,
    icmpv6,
    ipv4,
    ipv6,
    question,
    tcp,
    udp,
)
from tests.egress.web import MARK
from tests.egress.world import HOST_4, HOST_6
from tests.egress.zone import METADATA, METADATA_6, OTHER, WEB

WHERE = "open"
SAID = MARK.encode()
OTHER_MAC = "02:57:41:52:00:99"
LINK_LOCAL, ALL_NODES, ALL_ROUTERS = "fe80::57:41ff:fe52:2", "ff02::1", "ff02::2"
ALL_NODES_MAC = "33:33:00:00:00:01"
# Loose source routing: to us, and from there to the metadata address.
SOURCE_ROUTE = bytes([131, 7, 4, 169, 254, 169, 254, 0])
QUIC = bytes.fromhex("c300000001088394c8f03e5157080000449e") + bytes(1182)
PROTOCOLS = {"igmp": 2, "ipip": 4, "6in4": 41, "gre": 47, "esp": 50, "ah": 51, "ospf": 89, "sctp": 132, "odd": 253}


def datagrams() -> list[Attempt]:
    """By the guest's own sockets. They are told that it is refused."""
    targets = {
        "udp": (OTHER, 9999, SAID),
        "udp-metadata": (METADATA, 80, SAID),
        "udp-host": (HOST_4, 7070, SAID),
        "udp-our-side": (OUR_SIDE, 3128, SAID),
        "udp-ntp": ("8.8.8.8", 123, b"\x1b" + bytes(47)),
        "udp-names-elsewhere": ("8.8.8.8", 5353, question("evil.example.net")),
        "quic": (WEB, 443, QUIC),
        "quic-1.1.1.1": ("1.1.1.1", 443, QUIC),
        "udp-doq": ("1.1.1.1", 853, QUIC),
        "udp-large": (OTHER, 9998, bytes(8000)),
    }
    made = []
    for name, (address, port, data) in targets.items():
        arguments = {"at": [address, port], "data": text(data)}
        row = Row(("udp", "protocol"), "packet", address=address, port=port)
        if name == "udp-large":  # in pieces, of which only the first knows its port
            row = Row(("udp", "protocol"), "packet", address=address)
        made.append(Attempt(name, "datagram", arguments, row, WHERE, is_quiet=name == "udp-large"))
    return made


def spoofed() -> list[Attempt]:
    """Packets that say they are somebody else's."""
    made = []
    for named, source in {
        "our-side": OUR_SIDE,
        "loopback": "127.0.0.1",
        "private": "10.0.0.5",
        "host": HOST_4,
        "neighbour": "172.16.0.3",
        "zero": "0.0.0.0",
        "broadcast": "255.255.255.255",
    }.items():
        row = Row(("ip-spoof",), "packet")
        made.append(_frame(f"spoofed-tcp-from-{named}", tcp(OTHER, 80, source=source), row))
        made.append(_frame(f"spoofed-udp-from-{named}", udp(OTHER, 53, SAID, source=source), row))
    stranger = ethernet(tcp(OTHER, 80), source=OTHER_MAC)
    made += [
        _frames("spoofed-mac", [stranger], Row(("mac-spoof",), "packet")),
        _frames("spoofed-mac-ours", [ethernet(udp(OTHER, 9, SAID), source=OUR_MAC)], Row(("mac-spoof",), "packet")),
        _frames(
            "spoofed-mac-group", [ethernet(tcp(OTHER, 80), source="01:00:5e:00:00:01")], Row(("mac-spoof",), "packet")
        ),
        _frames("arp-gratuitous", [_arp(2, OUR_SIDE, GUEST_MAC, OUR_SIDE)], Row(("arp",), "packet")),
        _frames("arp-claims-our-side", [_arp(1, OUR_SIDE, GUEST_MAC, GUEST)], Row(("arp",), "packet")),
        _frames("arp-other-mac", [_arp(2, GUEST, OTHER_MAC, OUR_SIDE)], Row(("arp", "mac-spoof"), "packet")),
        _frames("arp-asks-metadata", [_arp(1, GUEST, GUEST_MAC, METADATA)], Row(("arp",), "packet")),
        _frames("arp-asks-host", [_arp(1, GUEST, GUEST_MAC, HOST_4)], Row(("arp",), "packet")),
        _frames("rarp", [ethernet(arp(3, GUEST, GUEST_MAC, GUEST), 0x8035)], Row(("protocol", "arp"), "packet")),
    ]
    return made


def raw() -> list[Attempt]:
    """Every protocol that IP can carry, and IP in its odder forms."""
    made = [
        _frame(f"protocol-{name}", ipv4(OTHER, number, SAID + bytes(20)), Row(("protocol",), "packet", address=OTHER))
        for name, number in PROTOCOLS.items()
    ]
    ping = Row(("icmp",), "packet")
    made += [
        _frame("ping", icmp(OTHER, 8), Row(("icmp",), "packet", address=OTHER)),
        _frame("ping-metadata", icmp(METADATA, 8), Row(("icmp",), "packet", address=METADATA)),
        _frame("ping-our-side", icmp(OUR_SIDE, 8), ping),
        _frame("ping-tunnel", icmp("8.8.8.8", 8, rest=SAID * 60), Row(("icmp",), "packet", address="8.8.8.8")),
        _frame("icmp-redirect", icmp(OUR_SIDE, 5, 1, _packed(GUEST) + tcp(GUEST, 80, source=OUR_SIDE)), ping),
        _frame("icmp-timestamp", icmp(HOST_4, 13, rest=bytes(16)), Row(("icmp",), "packet", address=HOST_4)),
        _frame("icmp-stray-error", icmp(OUR_SIDE, 3, 4, bytes(4) + tcp(GUEST, 80, source=OUR_SIDE)), ping),
        _frame("traceroute", udp(OTHER, 33_434, SAID, ttl=1), Row(("udp",), "packet", port=33_434)),
        _frame("source-routed", udp(OTHER, 9997, SAID, options=SOURCE_ROUTE), Row(("udp", "protocol"), "packet")),
        _frame(
            "source-routed-tcp",
            tcp(OTHER, 9996, ACK, SAID, options=SOURCE_ROUTE),
            Row(("protocol",), "packet", address=OTHER, port=9996),
        ),
        _frame(
            "fragment-first",
            ipv4(OTHER, 17, udp(OTHER, 9995, SAID)[20:], fragment=0x2000),
            Row(("udp", "protocol"), "packet"),
        ),
        _frame("fragment-later", ipv4(OTHER, 17, SAID * 2, fragment=0x0010), Row(("udp", "protocol"), "packet")),
        _frame("stray-ack", tcp(OTHER, 9994, ACK, SAID), Row(("tcp",), "packet")),
        _frame("stray-reset", tcp(OTHER, 9993, RST | ACK, SAID), Row(("tcp",), "packet")),
        _frame("multicast", udp("224.0.0.251", 5353, SAID), Row(("udp",), "packet", address="224.0.0.251")),
        _frame("broadcast", udp("255.255.255.255", 9, SAID), Row(("udp",), "packet")),
        _frames("dhcp", [ethernet(_DISCOVER, destination=BROADCAST_MAC)], Row(("udp", "ip-spoof"), "packet")),
        _frames(
            "tagged",
            [ethernet(struct.pack("!HH", 5, 0x0800) + udp(OTHER, 9, SAID), VLAN)],
            Row(("protocol",), "packet"),
        ),
        _frames("lldp", [ethernet(bytes(46), 0x88CC, destination="01:80:c2:00:00:0e")], Row(("protocol",), "packet")),
        _frames("odd-ethertype", [ethernet(SAID + bytes(46), 0x88B5)], Row(("protocol",), "packet")),
    ]
    return made


def version_6() -> list[Attempt]:
    """IPv6, which a slot does not have."""
    advertisement = bytes(4) + _packed_6(OTHER_6) + b"\x02\x01" + bytes.fromhex(GUEST_MAC.replace(":", ""))
    router = b"\x40\x00\x07\x08" + bytes(8)
    packets = {
        "neighbour-advertisement": (icmpv6(ALL_NODES, 136, advertisement), ALL_NODES_MAC),
        "neighbour-solicitation": (icmpv6(ALL_NODES, 135, bytes(4) + _packed_6(HOST_6)), ALL_NODES_MAC),
        "router-advertisement": (icmpv6(ALL_NODES, 134, router), ALL_NODES_MAC),
        "router-solicitation": (icmpv6(ALL_ROUTERS, 133, bytes(4)), "33:33:00:00:00:02"),
        "redirect": (icmpv6(ALL_NODES, 137, bytes(4) + _packed_6(OTHER_6) * 2), ALL_NODES_MAC),
        "ping": (icmpv6(HOST_6, 128, b"\0\1\0\1" + SAID), OUR_MAC),
        "tcp": (tcp("2600:1f18:94::6", 80, source=LINK_LOCAL), OUR_MAC),
        "tcp-metadata": (tcp(METADATA_6, 80, source="fd00:ec2::2"), OUR_MAC),
        "udp": (udp("2606:4700:4700::1111", 53, question("evil.example.net"), source=LINK_LOCAL), OUR_MAC),
        "dhcp": (udp("ff02::1:2", 547, bytes(8), source=LINK_LOCAL, source_port=546), "33:33:00:01:00:02"),
        "odd-protocol": (ipv6("2600:1f18:94::6", 253, SAID), OUR_MAC),
    }
    return [
        _frames(f"ipv6-{name}", [ethernet(packet, IPV6, destination=mac)], Row(("ipv6",), "packet"))
        for name, (packet, mac) in packets.items()
    ]


OTHER_6 = "fe80::1"
_DISCOVER = udp("255.255.255.255", 67, b"\1\1\6\0" + bytes(232), source="0.0.0.0", source_port=68)


def _arp(operation: int, sender: str, sender_mac: str, target: str) -> bytes:
    return ethernet(arp(operation, sender, sender_mac, target), ARP, destination=BROADCAST_MAC)


def _frame(name: str, packet: bytes, row: Row) -> Attempt:
    return _frames(name, [ethernet(packet)], row)


def _frames(name: str, frames: list[bytes], row: Row) -> Attempt:
    return Attempt(name, "frames", {"frames": [text(frame) for frame in frames]}, row, WHERE)


def _packed(address: str) -> bytes:
    return bytes(map(int, address.split(".")))


def _packed_6(address: str) -> bytes:
    return ipv6(address, 59, b"")[24:40]


ALL = (datagrams, spoofed, raw, version_6)
