"""Which addresses are whose."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.egress.addresses import Kind, kind_of, literal

PUBLIC = ["8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.0", "100.128.0.0", "223.255.255.255", "2606:4700::1111"]
PRIVATE = ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "fd12:3456::1", "fc00::1"]
FORBIDDEN = [
    "0.0.0.0",
    "0.1.2.3",
    "127.0.0.1",
    "127.255.255.255",
    "169.254.169.254",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
    "100.100.100.200",
    "::",
    "::1",
    "::8.8.8.8",
    "64:ff9b::808:808",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:808:808::1",
    "3fff::1",
    "fe80::1",
    "fe80::a9fe:a9fe",
    "fec0::1",
    "ff02::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "4000::1",
    "2606:4700::1111%eth0",
]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (text, kind)
        for kind in Kind
        for text in {"public": PUBLIC, "private": PRIVATE, "forbidden": FORBIDDEN}[kind.value]
    ],
)
def test_every_address_is_of_one_kind(text: str, kind: Kind) -> None:
    assert kind_of(ip_address(text)) is kind


@given(st.ip_addresses())
def test_what_is_public_here_is_so_everywhere(address: IPv4Address | IPv6Address) -> None:
    if kind_of(address) is Kind.PUBLIC:
        assert address.is_global
        assert not address.is_multicast


@given(st.ip_addresses(v=4))
def test_an_address_of_ipv4_in_clothes_of_ipv6_is_what_it_is(address: IPv4Address) -> None:
    mapped = IPv6Address(f"::ffff:{address}")
    assert kind_of(mapped) is kind_of(address)
    assert literal(str(mapped)) == literal(f"[::ffff:{address}]") == literal(str(address)) == address


@given(st.ip_addresses(v=6))
def test_an_address_of_ipv6_may_be_in_brackets(address: IPv6Address) -> None:
    if address.ipv4_mapped is None:
        assert literal(str(address)) == literal(f"[{address}]") == address


@pytest.mark.parametrize(
    "text",
    ["", "[]", "example.com", "127.1", "0x7f.1", "010.0.0.1", "1.2.3.4.", " 1.2.3.4", "[1.2.3.4]", "[::1", "::1]", "1"],
)
def test_other_forms_are_no_addresses(text: str) -> None:
    assert literal(text) is None


@given(st.text(max_size=40))
def test_whatever_it_is_it_raises_nothing(text: str) -> None:
    literal(text)
