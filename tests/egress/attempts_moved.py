"""Attempts by somebody who makes the guest's network anew: routes, addresses, another card. And by using too much."""

from tests.egress.attempts import WEB_NAME, Attempt, Control, Row, get, keep, shell
from tests.egress.zone import METADATA, OTHER

WHERE = "moved"
OUR_MAC, GUEST_MAC = "02:57:41:52:00:01", "02:57:41:52:00:02"
# A second address, and a way for it that leads to the same card.
SECOND = (
    "ip address add 10.9.8.7/24 dev eth0;"
    f" ip neighbour replace 10.9.8.1 lladdr {OUR_MAC} dev eth0;"
    " ip route prepend default via 10.9.8.1 dev eth0 src 10.9.8.7;"
)
NOT_SECOND = " ip route del default via 10.9.8.1; ip address del 10.9.8.7/24 dev eth0"


def moved() -> list[Attempt]:
    spoofed = Row(("ip-spoof",), "packet")
    return [
        _shell("second-default-route", f"{SECOND} curl -sS -m 2 http://{OTHER}/;{NOT_SECOND}", spoofed),
        _shell("second-route-metadata", f"{SECOND} curl -sS -m 2 http://{METADATA}/;{NOT_SECOND}", spoofed),
        _shell("second-address", f"{SECOND} curl -sS -m 2 --interface 10.9.8.7 http://{OTHER}/;{NOT_SECOND}", spoofed),
        _shell(
            "another-card",
            f"ip link set eth0 address 02:57:41:52:00:77; curl -sS -m 2 http://{OTHER}/;"
            f" ip link set eth0 address {GUEST_MAC}",
            Row(("mac-spoof",), "packet"),
        ),
        _shell(
            "own-ipv6",
            "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0; ip -6 address add 2600:1f18:93::9/64 dev eth0 nodad;"
            f" ip -6 neighbour replace 2600:1f18:93::1 lladdr {OUR_MAC} dev eth0;"
            " ip -6 route add default via 2600:1f18:93::1 dev eth0;"
            " curl -sS -m 2 'http://[2600:1f18:94::6]/'; ip -6 address flush dev eth0",
            Row(("ipv6",), "packet"),
        ),
        _shell("proxy-at-loopback", f"curl -sS -m 2 -x 127.0.0.1:3128 http://{METADATA}/", None),
        _shell("host-in-hosts-file", _HOSTS_FILE, Row(("policy",), name="evil.example.net"), policy="listed"),
    ]


def limits() -> list[Attempt]:
    """More than a sandbox may use."""
    held = {"at": [WEB_NAME, 80], "count": 8, "say": keep(WEB_NAME)}
    return [
        Attempt("limit-connections", "crowd", held, Row(("too_many",)), "few", is_quiet=True, may_begin=8),
        Attempt("limit-rate", *shell(_FAST), Row(("too_fast",)), "slow", is_quiet=True, may_begin=100),
        Attempt("limit-bytes-down", *shell(_DOWN), Row(("byte_limit",), verdict="allowed"), "little", is_quiet=True),
        Attempt("limit-bytes-after", *shell(f"curl -sS -m 5 http://{WEB_NAME}/"), Row(("byte_limit",)), "little"),
        Attempt("limit-bytes-up", *shell(_UP), Row(("byte_limit",), verdict="allowed"), "little-up", is_quiet=True),
        Attempt("limit-idle", *shell(_IDLE), Row(("idle",), verdict="allowed"), "brief", is_quiet=True, may_begin=1),
    ]


def controls() -> list[Control]:
    forgotten = "ip neighbour flush dev eth0; ip neighbour del 172.16.0.1 dev eth0;"
    small = "ip link set eth0 mtu 576; curl -sS -m 5 http://{0}/bytes/1 | wc -c; ip link set eth0 mtu 1500"
    return [
        Control("neighbour-forgotten", *shell(f"{forgotten} curl -sS -m 5 http://{OTHER}/found"), "/found", WHERE),
        Control("small-packets", *shell(small.format(OTHER)), "1048576", WHERE),
        Control("limit-not-reached", *shell(f"curl -sS -m 5 http://{WEB_NAME}/few"), "/few", "few"),
        Control("deny-nothing", *shell("echo alive"), "alive", "deny"),
    ]


def denied() -> list[Attempt]:
    """Under `deny`, what everybody else may do."""
    return [
        Attempt(
            "deny-name", *shell(f"curl -sS -m 5 http://{WEB_NAME}/"), Row(("policy",), "dns", name=WEB_NAME), "deny"
        ),
        Attempt("deny-address", *shell(f"curl -sS -m 5 http://{OTHER}/"), Row(("policy",), address=OTHER), "deny"),
        Attempt("deny-tls", *shell(f"curl -sS -k -m 5 https://{OTHER}/"), Row(("policy", "no_sni"), port=443), "deny"),
        Attempt(
            "deny-proxy", "talk", {"steps": [get(WEB_NAME, f"http://{WEB_NAME}/")]}, Row(("policy",), "http"), "deny"
        ),
        Attempt(
            "deny-connect",
            "talk",
            {"steps": [f"CONNECT {WEB_NAME}:443 HTTP/1.1\r\n\r\n"]},
            Row(("policy", "bad_request")),
            "deny",
        ),
        Attempt(
            "deny-tcp",
            "talk",
            {"steps": ["hello\r\n"], "at": [OTHER, 6667]},
            Row(("policy",), "tcp", port=6667),
            "deny",
        ),
    ]


_HOSTS_FILE = (
    f"echo {OTHER} evil.example.net >>/etc/hosts; curl -sS -m 5 http://evil.example.net/; sed -i '$d' /etc/hosts"
)
_FAST = f"for n in $(seq 40); do curl -s -m 5 -o /dev/null -w '%{{http_code}} ' http://{WEB_NAME}/ & done; wait"
_DOWN = f"curl -sS -m 20 -o /dev/null http://{WEB_NAME}/bytes/3; test $? -ne 0"
_UP = f"head -c 3000000 /dev/zero | curl -sS -m 20 -o /dev/null --data-binary @- http://{WEB_NAME}/; test $? -ne 0"
_ASKED = f"GET / HTTP/1.1\\r\\nHost: {WEB_NAME}\\r\\n\\r\\n"
_IDLE = f"timeout 20 bash -c 'exec 3<>/dev/tcp/{WEB_NAME}/80; printf \"{_ASKED}\" >&3; cat <&3'; test $? -ne 124"


def _shell(name: str, command: str, row: Row | None, policy: str = WHERE) -> Attempt:
    return Attempt(name, *shell(command), row, policy, is_quiet=True)


ALL = (moved, limits, denied)
