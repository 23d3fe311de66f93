"""Attempts by address: instance metadata in every form, the host, private networks, other machines.

They are made under `open`, the widest of policies: what is not refused by it is refused by none.
"""

from tests.egress.attempts import Attempt, Control, Row, absolute, connect, direct, get, shell, talk, tunnel
from tests.egress.world import HOST_4, HOST_6, HOST_PRIVATE
from tests.egress.zone import METADATA, METADATA_6, OTHER, WEB

WHERE = "open"
NOWHERE = ("forbidden_address", "bad_name", "bad_request")
# The metadata address as resolvers and libraries take it.
FORMS = {
    "decimal": "2852039166",
    "hex": "0xa9fea9fe",
    "octal": "0251.0376.0251.0376",
    "short": "169.254.43518",
    "shorter": "169.16689662",
    "mixed": "0xa9.254.0251.254",
}
FORMS_6 = {
    "mapped": "[::ffff:169.254.169.254]",
    "mapped-hex": "[::ffff:a9fe:a9fe]",
    "compatible": "[::169.254.169.254]",
    "nat64": "[64:ff9b::a9fe:a9fe]",
    "6to4": "[2002:a9fe:a9fe::1]",
    "ipv6": f"[{METADATA_6}]",
    "scoped": "[fe80::a9fe:a9fe%25eth0]",
}
# Names that lead there, by what they are called.
NAMES = {
    "name": "metadata.example.com",
    "name-ipv6": "metadata6.example.com",
    "name-mapped": "mapped.example.com",
    "name-nat64": "nat64.example.com",
    "name-6to4": "6to4.example.com",
    "name-with-the-address-in-it": "169-254-169-254.nip.example.com",
    "name-of-a-name": "alias.example.com",
}
FICKLE = {"metadata": "forbidden_address", "loopback": "forbidden_address", "private": "private_address"}
PRIVATE = {"10.0.0.5": 80, "172.31.0.9": 443, "192.168.1.1": 80, "100.64.0.1": 80}
NOBODYS = {"240.0.0.1": 80, "192.0.2.2": 80, "198.18.77.77": 80, "198.19.250.1": 22, "192.88.99.1": 80}
POOLD_PORT = 17_070  # of this world's poold
HOST_PORTS = (22, 80, 443, 7070, 8080)
OUR_PORTS = (22, 80, 443, 1024, 7070, 8080)


def metadata() -> list[Attempt]:
    made = [
        _attempt("metadata", direct(METADATA), Row(("forbidden_address",), address=METADATA)),
        _attempt("metadata-curl", shell(f"curl -sS -m 5 http://{METADATA}/latest/"), Row(("forbidden_address",))),
        _attempt(
            "metadata-tls",
            ("tls", {"sni": None, "request": get(METADATA), "at": [METADATA, 443]}),
            Row(("no_sni", "forbidden_address"), port=443),
        ),
        _attempt("metadata-other-port", direct(METADATA, 8775), Row(("forbidden_address",), port=8775)),
        _attempt("metadata-proxy", absolute(METADATA), Row(("forbidden_address",), "http", address=METADATA)),
        _attempt("metadata-proxy-dot", absolute(f"{METADATA}."), Row(NOWHERE, "http")),
        _attempt("metadata-connect", tunnel(f"{METADATA}:80"), Row(("forbidden_address",), "connect", port=80)),
        _attempt("metadata-redirect", shell(_FOLLOW), Row(("forbidden_address",), address=METADATA, port=80)),
        _attempt(
            "metadata-redirect-proxy", shell(f"{_FOLLOW} -x 172.16.0.1:3128"), Row(("forbidden_address",), "http")
        ),
        _attempt("metadata-link-route", shell(_LINK_ROUTE), Row(("forbidden_address",), address=METADATA, port=80)),
        _attempt("metadata-host-header", direct(OTHER, host=METADATA), Row((*NOWHERE, "host_mismatch"), "http")),
    ]
    for form, address in FORMS.items():
        made.append(_attempt(f"metadata-{form}", direct(address), Row(("forbidden_address",), address=METADATA)))
        made.append(_attempt(f"metadata-proxy-{form}", absolute(address), Row(NOWHERE, "http")))
        made.append(_attempt(f"metadata-connect-{form}", tunnel(f"{address}:80"), Row(NOWHERE, "connect")))
    for form, address in FORMS_6.items():
        made.append(_attempt(f"metadata-proxy-{form}", absolute(address), Row(NOWHERE, "http")))
        made.append(_attempt(f"metadata-connect-{form}", tunnel(f"{address}:80"), Row(NOWHERE, "connect")))
    return made


def names() -> list[Attempt]:
    """Names that lead to where addresses may not."""
    made = []
    for called, name in NAMES.items():
        row = Row(("forbidden_address",), name=name, port=80)
        made.append(_attempt(f"metadata-{called}", direct(name), row))
        made.append(_attempt(f"metadata-proxy-{called}", absolute(name), row))
        made.append(_attempt(f"metadata-connect-{called}", tunnel(f"{name}:80"), row))
    for kind, why in FICKLE.items():
        name = f"rebind-{kind}.example.com"
        command = f"for n in 1 2; do curl -sS -m 5 -x 172.16.0.1:3128 http://{name}/latest/; done"
        made.append(_attempt(f"rebinding-{kind}", shell(command), Row((why,), "http", name=name), may_begin=1))
    for name, why in {
        "loopback.example.com": "forbidden_address",
        "loopback6.example.com": "forbidden_address",
        "zero.example.com": "forbidden_address",
        "many.example.com": "forbidden_address",
        "private.example.com": "private_address",
        "cgnat.example.com": "private_address",
        "host.example.com": "own_address",
        "host6.example.com": "own_address",
        "office.example.com": "private_address",
    }.items():
        row = Row((why, "own_address"), name=name)
        made.append(_attempt(f"name-{name.partition('.')[0]}", direct(name, 8080), row))
        made.append(_attempt(f"name-connect-{name.partition('.')[0]}", tunnel(f"{name}:8080"), row))
    return made


def host() -> list[Attempt]:
    """The host by its addresses, by ours in the slot, and by what it calls itself."""
    poold_port = POOLD_PORT
    own = ("own_address", "forbidden_address", "private_address", "bad_name", "no_destination")
    made = []
    for port in (*HOST_PORTS, poold_port):
        named = "poold" if port == poold_port else port
        why = ("not_tls",) if port == 443 else own  # of what is plain there nobody asks where it goes
        made.append(_attempt(f"host-{named}", direct(HOST_4, port), Row(why, address=HOST_4, port=port)))
        made.append(_attempt(f"host-connect-{named}", tunnel(f"{HOST_4}:{port}"), Row(own, "connect", port=port)))
    for port in (*OUR_PORTS, poold_port):
        named = "poold" if port == poold_port else port
        made.append(_attempt(f"our-side-{named}", direct("172.16.0.1", port), Row(own, port=port)))
    for named, address in {
        "loopback": "127.0.0.1",
        "loopback-short": "127.1",
        "loopback-6": "[::1]",
        "loopback-mapped": "[::ffff:127.0.0.1]",
        "localhost": "localhost",
        "zero": "0.0.0.0",
        "ipv6": f"[{HOST_6}]",
        "private": HOST_PRIVATE,
        "own-name": "warren-host",
        "slot": "172.16.0.1",
    }.items():
        row = Row((*own, "resolve_failed"), "connect", port=poold_port)
        made.append(_attempt(f"host-by-{named}", tunnel(f"{address}:{poold_port}"), row))
        row = Row((*own, "resolve_failed"), "http", port=8080)
        made.append(_attempt(f"host-http-by-{named}", absolute(f"{address}:8080", "/"), row))
    return made


def others() -> list[Attempt]:
    """Private networks, addresses of nobody, and machines beside this one."""
    own = ("own_address", "no_destination", "private_address", "forbidden_address", "policy")
    made = []
    for address, port in PRIVATE.items():
        row = Row(("private_address", "no_sni", "not_tls"), address=address, port=port)
        made.append(_attempt(f"private-{address}", direct(address, port), row))
        made.append(
            _attempt(f"private-connect-{address}", tunnel(f"{address}:{port}"), Row(("private_address",), "connect"))
        )
    for address, port in NOBODYS.items():
        row = Row(("forbidden_address", "no_destination", "bad_name"), address=address, port=port)
        made.append(_attempt(f"nobody-{address}", direct(address, port), row))
    for port in (1024, 3128, 8000):
        made.append(_attempt(f"other-machine-{port}", direct("172.16.0.6", port), Row(own, port=port)))
    through_other = talk(get("web.example.com", "http://web.example.com/"), at=("172.16.0.5", 3128))
    made.append(_attempt("proxy-of-another-machine", through_other, Row(own, address="172.16.0.5", port=3128)))
    by_host = talk(get("web.example.com", "http://web.example.com/"), at=(HOST_4, 3128))
    made.append(_attempt("proxy-on-the-host", by_host, Row((*own, "host_mismatch"), address=HOST_4, port=3128)))
    hidden = talk(get("evil.example.net", "http://evil.example.net/"), at=("172.16.0.1", 3129))
    made.append(_attempt("transparent-port", hidden, Row(own)))
    through_itself = talk(connect("172.16.0.1:3128"), connect(f"{METADATA}:80"))
    made.append(
        _attempt("proxy-through-itself", through_itself, Row((*own, "forbidden_address"), "connect", port=3128))
    )
    return made


def controls() -> list[Control]:
    """What `open` is for."""
    return [
        Control("open-address", *direct(OTHER), heard=OTHER, policy=WHERE),
        Control("open-name", *direct("web.example.com"), heard="web.example.com", policy=WHERE),
        Control("open-proxy", *absolute("other.example.com"), heard="other.example.com", policy=WHERE),
        Control("open-connect", *tunnel(f"{OTHER}:80"), heard=OTHER, policy=WHERE),
        Control("open-ipv6-by-name", *direct("six.example.com"), heard="six.example.com", policy=WHERE),
        Control("open-other-port", *talk("hello\r\n", at=(OTHER, 9418)), heard="9418", policy=WHERE),
        Control("open-redirect-begins", *direct("web.example.com"), heard="web.example.com", policy=WHERE),
        # Of several addresses the one that is nobody's business is left out.
        Control("open-both", *absolute("both.example.com", "/"), heard="both.example.com", policy=WHERE),
        # It is the name that counts: the proxy finds out itself where it is.
        Control(
            "open-metadata-names-web", *direct(METADATA, host="web.example.com"), heard="web.example.com", policy=WHERE
        ),
    ]


_FOLLOW = f"curl -sS -m 5 -L 'http://web.example.com/redirect?to=http://{METADATA}/latest/'"
_LINK_ROUTE = (
    f"ip route add {METADATA} dev eth0 && ip neighbour replace {METADATA} lladdr 02:57:41:52:00:01 dev eth0;"
    f" curl -sS -m 5 http://{METADATA}/latest/; ip route del {METADATA} dev eth0"
)
REACH = frozenset({(WEB, 80), (WEB, 443), (OTHER, 80), (OTHER, 443), (OTHER, 9418), ("2600:1f18:94::6", 80)})


def _attempt(name: str, how: tuple[str, dict[str, object]], row: Row, *, may_begin: int = 0) -> Attempt:
    return Attempt(name, *how, row=row, policy=WHERE, may_begin=may_begin)


ALL = (metadata, names, host, others)
