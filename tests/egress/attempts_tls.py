"""Attempts by TLS: a name that is said is not the one that is meant, or is said so that it can be read in two ways."""

import struct
from typing import Any

from tests.egress.attempts import EVIL_NAME, WEB_NAME, Attempt, Control, Row, connect, get, keep, talk
from tests.egress.hellos import ech, handshake, hello, names, records
from tests.egress.zone import OTHER, SSH, WEB

TUNNEL = f"{WEB_NAME}:443"
NOT_TLS = ("not_tls", "no_sni", "sni_mismatch", "bad_name")
WEB_BYTES, EVIL_BYTES = WEB_NAME.encode(), EVIL_NAME.encode()


def names_that_differ() -> list[Attempt]:
    """SNI, Host and CONNECT say different things."""
    mismatch = Row(("sni_mismatch",), name=WEB_NAME)
    return [
        _tls("sni-differs-from-connect", mismatch, sni=EVIL_NAME, target=TUNNEL),
        _tls("sni-differs-from-connect-same-address", mismatch, sni="www.example.com", target=TUNNEL),
        _tls("sni-differs-from-name", mismatch, sni=EVIL_NAME, at=[WEB_NAME, 443]),
        _tls("sni-evil-to-allowed-address", Row(("policy",), "tls", name=EVIL_NAME), sni=EVIL_NAME, at=[WEB, 443]),
        _tls("sni-evil-elsewhere", Row(("policy",), "tls", name=EVIL_NAME), sni=EVIL_NAME, at=[OTHER, 443]),
        _tls(
            "fronting-connect-evil",
            Row(("policy",), "connect", name=EVIL_NAME),
            sni=WEB_NAME,
            target=f"{EVIL_NAME}:443",
        ),
        _tls("no-sni-in-connect", Row(("no_sni",)), sni=None, target=TUNNEL),
        _tls("no-sni", Row(("no_sni",)), sni=None, at=[WEB_NAME, 443]),
        _tls("no-sni-to-allowed-address", Row(("no_sni", "policy")), sni=None, at=[WEB, 443]),
        _tls("tls-on-80", Row(("sni_mismatch", "not_http")), sni=EVIL_NAME, at=[WEB_NAME, 80]),
        _tls("tls-in-connect-80", Row(("sni_mismatch", "not_http")), sni=EVIL_NAME, target=f"{WEB_NAME}:80"),
        _tls("tls-unlisted-port", Row(("policy",), port=8443), sni=WEB_NAME, at=[WEB_NAME, 8443]),
        _tls("tls-ssh-port", Row(("sni_mismatch",)), sni=EVIL_NAME, at=["ssh.example.com", 22]),
        _said("plain-in-connect-443", Row(NOT_TLS), keep(WEB_NAME)),
        _said("plain-evil-in-connect-443", Row(NOT_TLS), keep(EVIL_NAME)),
        _said("ssh-in-connect-443", Row(NOT_TLS), "SSH-2.0-OpenSSH_9.2\r\n"),
        Attempt("plain-on-443", *talk(get(WEB_NAME), at=(WEB_NAME, 443)), Row(NOT_TLS)),
        Attempt("ssh-on-443", *talk("SSH-2.0-OpenSSH_9.2\r\n", at=(WEB_NAME, 443)), Row(NOT_TLS)),
        Attempt("plain-host-differs-in-connect-80", *_in_80(get(EVIL_NAME)), Row(("host_mismatch", "policy"))),
        Attempt(
            "plain-absolute-differs-in-connect-80",
            *_in_80(get(WEB_NAME, f"http://{EVIL_NAME}/")),
            Row(("host_mismatch", "bad_request", "policy")),
        ),
    ]


def hellos() -> list[Attempt]:
    """First words that are encrypted, doubled, split, or broken."""
    evil_then_web = handshake(names(EVIL_BYTES), names(WEB_BYTES))
    made = {
        "ech": (records(handshake(names(WEB_BYTES), ech())), ("ech",)),
        "ech-first": (records(handshake(ech(), names(WEB_BYTES))), ("ech",)),
        "ech-split": (records(handshake(names(WEB_BYTES), ech()), [60, 60]), ("ech",)),
        "two-extensions": (records(handshake(names(WEB_BYTES), names(EVIL_BYTES))), NOT_TLS),
        "two-extensions-evil-first": (records(evil_then_web), NOT_TLS),
        "two-names": (records(handshake(names(WEB_BYTES, EVIL_BYTES))), NOT_TLS),
        "two-names-evil-first": (records(handshake(names(EVIL_BYTES, WEB_BYTES))), NOT_TLS),
        "evil-in-second-record": (records(handshake(names(EVIL_BYTES)), [80]), ("sni_mismatch",)),
        "evil-in-tiny-records": (records(handshake(names(EVIL_BYTES)), [1] * 90), ("sni_mismatch",)),
        "two-hellos": (hello(EVIL_NAME) + hello(WEB_NAME), ("sni_mismatch",)),
        "nul-in-name": (records(handshake(names(WEB_BYTES + b"\0." + EVIL_BYTES))), NOT_TLS),
        "trailing-evil": (hello(f"{WEB_NAME}.{EVIL_NAME}"), ("sni_mismatch",)),
        "address-as-name": (hello(WEB), NOT_TLS),
        "empty-name": (records(handshake(names(b""))), NOT_TLS),
        "other-name-type": (records(handshake(names(WEB_BYTES, kind=7))), NOT_TLS),
        "broken-length": (_with_length(hello(WEB_NAME)), NOT_TLS),
        "sslv2": (bytes.fromhex("802e0100020015000000100100800300800700c0") + bytes(30), NOT_TLS),
        "alert-first": (b"\x15\x03\x01\x00\x02\x01\x00" + hello(EVIL_NAME), NOT_TLS),
        "heartbeat-first": (b"\x18\x03\x01\x00\x03\x01\x00\x00" + hello(EVIL_NAME), NOT_TLS),
        "nothing-in-record": (b"\x16\x03\x01\x00\x00" + hello(EVIL_NAME), NOT_TLS),
        "dtls": (b"\x16\xfe\xfd" + bytes(40), NOT_TLS),
    }
    tried = [_said(f"hello-{name}", Row(why), said) for name, (said, why) in made.items()]
    direct = ("ech", "two-extensions", "evil-in-second-record", "two-names")
    tried += [
        Attempt(f"hello-direct-{name}", *talk(made[name][0], at=(WEB_NAME, 443)), Row(made[name][1])) for name in direct
    ]
    return tried


def controls() -> list[Control]:
    request = {"request": get(WEB_NAME, "/tls")}
    return [
        Control("tls-by-name", "tls", {**request, "sni": WEB_NAME, "at": [WEB_NAME, 443]}, "/tls"),
        Control("tls-by-connect", "tls", {**request, "sni": WEB_NAME, "target": TUNNEL}, "/tls"),
        # The name is allowed; that the address is another's does not matter, for it is not the one that is dialled.
        Control("tls-by-other-address", "tls", {**request, "sni": WEB_NAME, "at": [OTHER, 443]}, "/tls"),
        Control("tls-capitals", "tls", {**request, "sni": "WEB.Example.COM", "at": [WEB_NAME, 443]}, "/tls"),
        Control("tls-wildcard", "tls", {**request, "sni": "b.w.example.com", "at": ["b.w.example.com", 443]}, "/tls"),
        Control("server-speaks-first", *talk("", at=("ssh.example.com", 22)), heard=SSH),
        Control("server-speaks-first-connect", *talk(connect("ssh.example.com:22"), ""), heard=SSH),
    ]


def _tls(name: str, row: Row, **arguments: Any) -> Attempt:
    return Attempt(name, "tls", {"request": get(EVIL_NAME, "/fronted"), **arguments}, row)


def _said(name: str, row: Row, said: str | bytes) -> Attempt:
    """These words in a tunnel to an allowed name. That it is opened is no refusal; what follows is."""
    return Attempt(name, *talk(connect(TUNNEL), said), row)


def _in_80(request: str) -> tuple[str, dict[str, Any]]:
    return talk(connect(f"{WEB_NAME}:80"), request)


def _with_length(data: bytes) -> bytes:
    """The extensions say that they are longer than they are."""
    at = 5 + 4 + 2 + 32 + 1 + 32 + 2 + 6 + 2
    return data[:at] + struct.pack("!H", int.from_bytes(data[at : at + 2], "big") + 40) + data[at + 2 :]


ALL = (names_that_differ, hellos)
