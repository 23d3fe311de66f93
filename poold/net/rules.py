"""What may pass between a guest and its slot, as nftables sees it.

Only the host side opens connections. What the guest starts is refused at once, so that a program in it fails instead of
hanging. Where the guest may go out one day, its way begins with a redirect in `from_guest`, before the refusals.
"""

from poold.net.addresses import GUEST_ADDRESS, TAP

RULES = (
    f"""
define tap = "{TAP}"
define guest = {GUEST_ADDRESS}
"""
    + """
table inet warren {
    counter spoofed { }
    counter refused { }

    chain from_guest {
        # Before routing: a slot has no routes, so what is meant for elsewhere gets no further than this hook.
        type filter hook prerouting priority filter; policy drop;
        iifname != $tap drop
        meta nfproto != ipv4 drop
        ip saddr != $guest counter name spoofed drop

        ct state established accept
        # Redirects are "related" too, and no business of a guest.
        ct state related icmp type { destination-unreachable, time-exceeded, parameter-problem } accept

        counter name refused
        # Answering costs us more than asking costs the guest.
        limit rate over 200/second burst 100 packets drop
        meta l4proto tcp reject with tcp reset
        reject with icmp admin-prohibited
    }

    chain to_us {
        type filter hook input priority filter; policy drop;
        iifname $tap ct state established,related accept
    }

    chain through_us {
        type filter hook forward priority filter; policy drop;
    }

    chain to_guest {
        type filter hook output priority filter; policy drop;
        oifname $tap ip daddr $guest accept
    }
}
"""
)
