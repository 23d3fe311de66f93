"""What may pass between a guest and its slot, as nftables sees it.

The host side opens connections to the guest. The guest opens connections to one thing, its proxy: whatever it sends by
TCP, and whatever it asks of any name server, is redirected there, and the proxy decides. All else is refused at once,
so that a program fails instead of hanging, and is written to a log that the proxy reads (`PACKETS`).
"""

from poold.net.addresses import (
    EXPLICIT,
    GUEST_ADDRESS,
    GUEST_MAC,
    GUEST_PORT,
    HOST_ADDRESS,
    NAMES,
    PACKETS,
    TAP,
    TRANSPARENT,
)

_DEFINES = f"""
define tap = "{TAP}"
define host = {HOST_ADDRESS}
define guest = {GUEST_ADDRESS}
define guest_mac = {GUEST_MAC}
define guest_port = {GUEST_PORT}
define explicit = {EXPLICIT}
define transparent = {TRANSPARENT}
define names = {NAMES}
define proxy = {{ {EXPLICIT}, {TRANSPARENT}, {NAMES} }}
"""


def _log(why: str, match: str = "") -> str:
    """Tell the proxy of a packet that is dropped. It learns enough from a few a second."""
    return f'{match} limit rate 50/second burst 100 packets log prefix "{why}" group {PACKETS} snaplen 128'


RULES = (
    _DEFINES
    + f"""
table netdev warren {{
    counter spoofed {{ }}

    chain frames {{
        # Before anything else sees it: who sends, and what.
        type filter hook ingress device $tap priority filter; policy drop;
        {_log("mac-spoof", "ether saddr != $guest_mac")}
        ether saddr != $guest_mac counter name spoofed drop

        {_log("ip-spoof", "ether type ip ip saddr != $guest")}
        ether type ip ip saddr != $guest counter name spoofed drop
        # Pieces would wait for others that never come, and options are for routers: neither would be told.
        {_log("protocol", "ether type ip ip frag-off & 0x3fff != 0")}
        ether type ip ip frag-off & 0x3fff != 0 drop
        {_log("protocol", "ether type ip ip hdrlength != 5")}
        ether type ip ip hdrlength != 5 drop
        ether type ip accept

        # A guest may ask where we are, as itself. We never ask: our entry for it is permanent.
        ether type arp arp operation request arp saddr ether $guest_mac arp saddr ip $guest arp daddr ip $host accept
        {_log("arp", "ether type arp")}
        ether type arp drop

        # What every kernel with IPv6 says when its card comes up is no attempt at anything.
        ether type ip6 icmpv6 type {{ nd-router-solicit, mld-listener-report, mld2-listener-report }} drop
        ether type ip6 ip6 saddr :: icmpv6 type nd-neighbor-solicit drop
        {_log("ipv6", "ether type ip6")}
        ether type ip6 drop

        {_log("protocol")}
    }}
}}

table inet warren {{
    counter refused {{ }}

    chain to_proxy {{
        type nat hook prerouting priority dstnat; policy accept;
        iifname != $tap accept
        meta l4proto {{ tcp, udp }} th dport 53 redirect to :$names
        ip daddr $host tcp dport $explicit accept
        meta l4proto tcp redirect to :$transparent
    }}

    chain from_guest {{
        # Before routing: a slot has no routes, so what is meant for elsewhere gets no further than this hook.
        type filter hook prerouting priority filter; policy drop;
        iifname != $tap drop
        meta nfproto != ipv4 drop
        ip saddr != $guest drop

        # Also from where it was answered before, which is all that "established" means for UDP.
        ip daddr $host udp dport $names limit rate over 1000/second burst 500 packets counter name refused drop

        ct state established accept
        # Redirects are "related" too, and no business of a guest.
        ct state related icmp type {{ destination-unreachable, time-exceeded, parameter-problem }} accept

        # What a guest may have us do, far above what a proxy serves.
        ct state new ct count over 16384 counter name refused drop
        # What is of no connection and begins none is an attempt, too.
        ip daddr $host tcp dport $proxy tcp flags & (fin | syn | rst | ack) == syn ct state new \
            limit rate 1000/second burst 500 packets accept
        ip daddr $host udp dport $names limit rate 300/second burst 300 packets accept

        # What a guest still has to say to a poold of before it was frozen.
        ip daddr $host tcp sport $guest_port tcp flags & (syn | ack) != syn limit rate 200/second burst 100 packets \
            reject with tcp reset

        counter name refused
        {_log("udp", "meta l4proto udp")}
        {_log("icmp", "meta l4proto icmp")}
        {_log("tcp", "meta l4proto tcp")}
        {_log("protocol", "meta l4proto != { tcp, udp, icmp }")}
        # Answering costs us more than asking costs the guest.
        limit rate over 200/second burst 100 packets drop
        meta l4proto tcp reject with tcp reset
        reject with icmp admin-prohibited
    }}

    chain to_us {{
        type filter hook input priority filter; policy drop;
        iifname $tap accept  # what `from_guest` let in
    }}

    chain through_us {{
        type filter hook forward priority filter; policy drop;
    }}

    chain to_guest {{
        type filter hook output priority filter; policy drop;
        oifname $tap ip daddr $guest accept
    }}
}}
"""
)
