"""What left the host, judged by the policy that held."""

from collections.abc import Iterable

from tests.egress.attempts import Policy
from tests.egress.attempts_http import MARKER
from tests.egress.capture import Packet
from tests.egress.web import BROKEN, Hit
from tests.egress.world import HOST_4, HOST_6, RESOLVER

# How hosts find each other on a cable, and who listens there: the kernel's own, whatever runs on the host.
NEIGHBOURS = (133, 134, 135, 136, 143)
UNREACHABLE = 3


def leaks(
    policy: Policy, packets: Iterable[Packet], hits: Iterable[Hit], asked: Iterable[tuple[str, int]]
) -> list[str]:
    """Everything that arrived and that the policy does not allow."""
    return [
        *(str(packet) for packet in packets if not _may_arrive(policy, packet)),
        *(str(hit) for hit in hits if not _may_be_asked(policy, hit)),
        *(f"a question for {name}" for name, _ in asked if name not in policy.names),
    ]


def _may_arrive(policy: Policy, packet: Packet) -> bool:
    if packet.protocol == "arp" or (packet.protocol == "icmpv6" and packet.port in NEIGHBOURS):
        return True
    if packet.source not in (HOST_4, HOST_6):
        return False
    if packet.destination == RESOLVER:
        is_late = packet.protocol == "icmp" and packet.port == UNREACHABLE  # who asked has left
        return is_late or (packet.port == 53 and (packet.name in policy.names or packet.protocol == "tcp"))
    return packet.protocol == "tcp" and (packet.destination, packet.port) in policy.reach


def _may_be_asked(policy: Policy, hit: Hit) -> bool:
    """A server was asked what it may be asked: by an allowed name, or by an address that is allowed."""
    host = hit.host.partition(":")[0].rstrip(".").lower()
    addresses = {address for address, _ in policy.reach}
    names = policy.names | addresses
    is_named = (not host or host in names) and (hit.sni is None or hit.sni.lower() in names)
    return is_named and MARKER not in hit.said and hit.said != BROKEN and (hit.address, hit.port) in policy.reach
