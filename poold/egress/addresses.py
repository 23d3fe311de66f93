"""Which addresses are whose: of the world, of a private network, or of nobody that a guest may speak to. No I/O."""

from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address


class Kind(Enum):
    PUBLIC = "public"
    PRIVATE = "private"  # an operator may allow these
    FORBIDDEN = "forbidden"  # nobody may: loopback, link-local and with it instance metadata, multicast, reserved


_PRIVATE_4 = [IPv4Network(net) for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")]
_FORBIDDEN_4 = [
    IPv4Network(net)
    for net in (
        "0.0.0.0/8",
        "100.100.100.200/32",  # instance metadata and services of some clouds, outside of what is link-local
        "127.0.0.0/8",
        "168.63.129.16/32",  # so is this, in the middle of what is public
        "169.254.0.0/16",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",  # names get their addresses in a guest from here
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
]
_PRIVATE_6 = [IPv6Network("fc00::/7")]
_PUBLIC_6 = [IPv6Network("2000::/3")]
# Parts of 2000::/3 that are not of the world, or that carry an address of IPv4 in them.
_FORBIDDEN_6 = [
    IPv6Network(net)
    for net in (
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "fd00:ec2::/32",  # instance metadata, in the middle of what is private
        "fd20:ce::/32",
    )
]


def kind_of(address: Address) -> Kind:
    """What `address` is. One of IPv4 that is written as one of IPv6 is what it is as one of IPv4."""
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return _kind_6(address) if mapped is None else kind_of(mapped)
    if any(address in net for net in _FORBIDDEN_4):
        return Kind.FORBIDDEN
    return Kind.PRIVATE if any(address in net for net in _PRIVATE_4) else Kind.PUBLIC


def _kind_6(address: IPv6Address) -> Kind:
    if address.scope_id is not None or any(address in net for net in _FORBIDDEN_6):
        return Kind.FORBIDDEN
    if any(address in net for net in _PRIVATE_6):
        return Kind.PRIVATE
    return Kind.PUBLIC if any(address in net for net in _PUBLIC_6) else Kind.FORBIDDEN


def literal(text: str) -> Address | None:
    """The address that `text` is, in one of the two forms that have one meaning only. Brackets may be around IPv6."""
    has_brackets = text.startswith("[") and text.endswith("]")
    try:
        address = ip_address(text[1:-1] if has_brackets else text)
    except ValueError:
        return None
    if has_brackets and address.version == 4:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
