"""Attempts by HTTP: requests that say two things, requests within requests, and rules for methods and paths."""

from typing import Any

from tests.egress.attempts import EVIL_NAME, WEB_NAME, Attempt, Control, Row, absolute, connect, get, keep, talk
from tests.egress.zone import OTHER, WEB

MARKER = "/smuggled"  # no server may ever be asked for it
BAD = ("bad_request", "host_mismatch", "bad_name", "not_http")
PREFACE = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
INNER = f"GET {MARKER} HTTP/1.1\r\nHost: {WEB_NAME}\r\n\r\n"


def hosts_that_differ() -> list[Attempt]:
    """The target, the Host, the tunnel and the address that was dialled say different things."""
    evil = Row(("policy",), "http", name=EVIL_NAME)
    either = Row((*BAD, "policy"), "http")
    at_web = (WEB_NAME, 80)
    return [
        Attempt("absolute-evil", *absolute(EVIL_NAME, "/"), evil),
        Attempt("absolute-evil-host-web", *talk(get(WEB_NAME, f"http://{EVIL_NAME}/")), either),
        Attempt("absolute-web-host-evil", *talk(get(EVIL_NAME, f"http://{WEB_NAME}{MARKER}")), either),
        Attempt("host-evil", *talk(get(EVIL_NAME), at=at_web), either),
        Attempt("host-evil-to-allowed-address", *talk(get(EVIL_NAME), at=(WEB, 80)), evil),
        Attempt("host-evil-elsewhere", *talk(get(EVIL_NAME), at=(OTHER, 80)), evil),
        Attempt("host-none", *talk("GET /smuggled HTTP/1.1\r\n\r\n", at=at_web), either),
        Attempt("host-none-1.0", *talk("GET /smuggled HTTP/1.0\r\n\r\n", at=(OTHER, 80)), either),
        Attempt("host-two", *talk(get(WEB_NAME, MARKER, f"Host: {EVIL_NAME}"), at=at_web), either),
        Attempt("host-two-alike", *talk(get(WEB_NAME, MARKER, f"Host: {WEB_NAME}"), at=at_web), either),
        Attempt("host-userinfo", *talk(get(f"{WEB_NAME}@{EVIL_NAME}"), at=at_web), either),
        Attempt("host-other-port", *talk(get(f"{WEB_NAME}:8080"), at=at_web), either),
        Attempt("host-with-path", *talk(get(f"{WEB_NAME}/{EVIL_NAME}"), at=at_web), either),
        Attempt("host-folded", *talk(get(WEB_NAME, MARKER, "X-One: 1", " Host: evil.example.net"), at=at_web), either),
        Attempt("host-space-before-colon", *talk(get(WEB_NAME, MARKER, f"Host : {EVIL_NAME}"), at=at_web), either),
        Attempt("absolute-in-transparent", *talk(get(WEB_NAME, f"http://{EVIL_NAME}/"), at=at_web), either),
        Attempt("absolute-userinfo", *talk(get(WEB_NAME, f"http://{WEB_NAME}@{EVIL_NAME}/")), either),
        Attempt("absolute-userinfo-port", *talk(get(WEB_NAME, f"http://{WEB_NAME}:80@{EVIL_NAME}/")), either),
        Attempt("absolute-backslash", *talk(get(WEB_NAME, f"http://{EVIL_NAME}\\@{WEB_NAME}/")), either),
        Attempt("absolute-https", *talk(get(EVIL_NAME, f"https://{EVIL_NAME}/")), either),
        Attempt("absolute-ftp", *talk(get(WEB_NAME, f"ftp://{WEB_NAME}{MARKER}")), either),
        Attempt("absolute-other-port", *absolute(f"{WEB_NAME}:8080", "/"), Row(("policy",), "http", port=8080)),
        Attempt("absolute-address", *absolute(WEB, "/"), Row(("policy",), "http", address=WEB)),
        Attempt("proxy-origin-form", *talk(get(WEB_NAME, MARKER)), either),
        Attempt("next-absolute-evil", *_two(keep(EVIL_NAME, f"http://{EVIL_NAME}{MARKER}")), evil, may_begin=1),
        Attempt("next-host-evil", *_two(keep(WEB_NAME, f"http://{EVIL_NAME}{MARKER}")), either, may_begin=1),
        Attempt(
            "next-transparent-evil", *talk(keep(WEB_NAME), keep(EVIL_NAME, MARKER), at=at_web), either, may_begin=1
        ),
        Attempt("pipelined-evil", *talk(keep(WEB_NAME) + keep(EVIL_NAME, MARKER), "", at=at_web), either, may_begin=1),
        Attempt("websocket-evil", *talk(keep(EVIL_NAME, "/", *_UPGRADE), at=(OTHER, 80)), evil),
    ]


def tunnels() -> list[Attempt]:
    """CONNECT to what is not allowed, or to what could be read in two ways."""
    made = {
        "evil": (f"{EVIL_NAME}:443", ("policy",)),
        "ssh": (f"{WEB_NAME}:22", ("policy",)),
        "mail": (f"{WEB_NAME}:25", ("policy",)),
        "unlisted-port": (f"{WEB_NAME}:8443", ("policy",)),
        "address": (f"{WEB}:443", ("policy",)),
        "other-address": (f"{OTHER}:22", ("policy",)),
        "no-port": (WEB_NAME, BAD),
        "port-0": (f"{WEB_NAME}:0", (*BAD, "policy")),
        "port-large": (f"{WEB_NAME}:65979", BAD),  # 443, if only 16 bits are looked at
        "port-word": (f"{WEB_NAME}:https", BAD),
        "port-plus": (f"{WEB_NAME}:+443", BAD),
        "userinfo": (f"{WEB_NAME}:443@{EVIL_NAME}:443", BAD),
        "userinfo-evil": (f"{EVIL_NAME}@{WEB_NAME}:443", BAD),
        "path": (f"{EVIL_NAME}:443/{WEB_NAME}:443", BAD),
        "fragment": (f"{EVIL_NAME}:443#{WEB_NAME}:443", BAD),
        "space": (f"{EVIL_NAME}:443 {WEB_NAME}:443", BAD),
        "tab": (f"{EVIL_NAME}\t{WEB_NAME}:443", BAD),
        "nul": (f"{WEB_NAME}\0.{EVIL_NAME}:443", BAD),
        "percent": ("%65vil.example.net:443", BAD),
        "unicode": ("wéb.example.com:443", BAD),
        "wide-dot": ("web\u3002example.com:443".encode().decode("latin-1"), BAD),
        "suffix": (f"{WEB_NAME}.{EVIL_NAME}:443", ("policy",)),
        "star": ("*.w.example.com:443", BAD),
        "absolute": (f"http://{WEB_NAME}:443/", BAD),
        "empty": (":443", BAD),
    }
    return [
        Attempt(f"connect-{name}", *talk(connect(target)), Row(why, None if why is BAD else "connect"))
        for name, (target, why) in made.items()
    ]


def smuggled() -> list[Attempt]:
    """Two servers would see different ends of these requests."""
    row = Row((*BAD, "policy"), "http")
    bodies = {
        "length-and-chunked": ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", f"0\r\n\r\n{INNER}"),
        "chunked-and-length": ("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", f"0\r\n\r\n{INNER}"),
        "two-codings": ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", f"0\r\n\r\n{INNER}"),
        "coding-list": ("Transfer-Encoding: gzip, chunked\r\n", f"0\r\n\r\n{INNER}"),
        "coding-odd": ("Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n", f"0\r\n\r\n{INNER}"),
        "coding-tab": ("Transfer-Encoding:\x0bchunked\r\n", f"0\r\n\r\n{INNER}"),
        "coding-space": ("Transfer-Encoding : chunked\r\n", f"0\r\n\r\n{INNER}"),
        "coding-folded": ("Transfer-Encoding:\r\n chunked\r\n", f"0\r\n\r\n{INNER}"),
        "two-lengths": (f"Content-Length: 0\r\nContent-Length: {len(INNER)}\r\n", INNER),
        "length-list": (f"Content-Length: 0, {len(INNER)}\r\n", INNER),
        "length-plus": ("Content-Length: +5\r\n", "hello"),
        "length-negative": ("Content-Length: -1\r\n", INNER),
        "length-hex": ("Content-Length: 0x5\r\n", "hello"),
        "chunk-0x": ("Transfer-Encoding: chunked\r\n", f"0x5\r\nhello\r\n0\r\n\r\n{INNER}"),
        "chunk-negative": ("Transfer-Encoding: chunked\r\n", f"-1\r\nhello\r\n0\r\n\r\n{INNER}"),
        "chunk-huge": ("Transfer-Encoding: chunked\r\n", f"fffffffffffffffff\r\n{INNER}"),
        "chunk-no-end": ("Transfer-Encoding: chunked\r\n", f"5\r\nhelloXX0\r\n\r\n{INNER}"),
        "chunk-bare-lf": ("Transfer-Encoding: chunked\r\n", f"5\nhello\n0\n\n{INNER}"),
        "chunk-extension-lf": ("Transfer-Encoding: chunked\r\n", f"5;a\nhello\r\n0\r\n\r\n{INNER}"),
        "bare-cr": ("X-One: a\rX-Two: b\r\n", ""),
        "bare-lf": ("X-One: a\nX-Two: b\r\n", ""),
        "nul": ("X-One: a\0b\r\n", ""),
        "header-without-colon": ("X-One\r\n", ""),
        "header-without-name": (": one\r\n", ""),
    }
    made = [
        Attempt(
            f"smuggling-{name}", *talk(_post(headers, body), at=(WEB_NAME, 80)), row, may_begin=int("chunk" in name)
        )
        for name, (headers, body) in bodies.items()
    ]
    return [
        *made,
        Attempt("h2c-preface", *talk(PREFACE, at=(WEB_NAME, 80)), Row(("h2c", *BAD))),
        Attempt("h2c-preface-proxy", *talk(PREFACE), Row(("h2c", *BAD))),
        Attempt("h2c-preface-connect", *talk(connect(f"{WEB_NAME}:80"), PREFACE), Row(("h2c", *BAD))),
        Attempt("h2c-upgrade", *talk(keep(WEB_NAME, "/", *_H2C), at=(WEB_NAME, 80)), Row(("h2c",))),
        Attempt("h2c-upgrade-proxy", *talk(keep(WEB_NAME, f"http://{WEB_NAME}/", *_H2C)), Row(("h2c",))),
        Attempt("not-http-on-80", *talk("SSH-2.0-OpenSSH_9.2\r\n", at=(WEB_NAME, 80)), Row(BAD)),
        Attempt("http-0.9", *talk(f"GET {MARKER}\r\n\r\n", at=(WEB_NAME, 80)), Row(BAD)),
        Attempt(
            "http-2-line",
            *talk(f"GET {MARKER} HTTP/2.0\r\nHost: {WEB_NAME}\r\n\r\n", at=(WEB_NAME, 80)),
            Row(("h2c", *BAD)),
        ),
    ]


def rules() -> list[Attempt]:
    """A policy with methods and paths: GET and HEAD of /public/…"""
    made = {
        "post": ("POST", "/public/x"),
        "delete": ("DELETE", "/public/x"),
        "method-small": ("get", "/public/x"),
        "root": ("GET", "/"),
        "private": ("GET", "/private"),
        "beside": ("GET", "/publicity"),
        "dots": ("GET", "/public/../private"),
        "encoded-dots": ("GET", "/public/%2e%2e/private"),
        "encoded-slash": ("GET", "/public%2f..%2fprivate"),
        "double-slash": ("GET", "//public/../private"),
        "backslash": ("GET", "/public\\..\\private"),
        "path-in-query": ("GET", "/private?/public/x"),
        "dot": ("GET", "/public/./x"),
        "encoded": ("GET", "/%70rivate"),
    }
    row = Row(("policy", *BAD), "http")
    where = "paths"
    tried = [
        Attempt(f"rule-{name}", *talk(get(WEB_NAME, path, method=method), at=(WEB_NAME, 80)), row, where)
        for name, (method, path) in made.items()
    ]
    return [
        *tried,
        Attempt("rule-proxy", *talk(get(WEB_NAME, f"http://{WEB_NAME}/private")), row, where),
        Attempt("rule-connect-80", *talk(connect(f"{WEB_NAME}:80"), get(WEB_NAME, "/private")), Row(row.why), where),
        Attempt(
            "rule-next",
            *talk(keep(WEB_NAME, "/public/a"), keep(WEB_NAME, "/private"), at=(WEB_NAME, 80)),
            row,
            where,
            may_begin=1,
        ),
        Attempt("rule-tls", "tls", {"sni": WEB_NAME, "request": "", "at": [WEB_NAME, 443]}, Row(("policy",)), where),
        Attempt(
            "rule-tls-on-80",
            "tls",
            {"sni": WEB_NAME, "request": "", "at": [WEB_NAME, 80]},
            Row(("policy", "not_http")),
            where,
        ),
        Attempt("rule-connect-443", *talk(connect(f"{WEB_NAME}:443")), Row(("policy",), "connect"), where),
        Attempt("rule-upgrade", *talk(keep(WEB_NAME, "/private", *_UPGRADE), at=(WEB_NAME, 80)), row, where),
    ]


def controls() -> list[Control]:
    chunked = "Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"
    at_web = (WEB_NAME, 80)
    return [
        Control("http-by-name", *talk(get(WEB_NAME, "/one"), at=at_web), heard="/one"),
        Control("http-by-proxy", *talk(get(WEB_NAME, f"http://{WEB_NAME}/two")), heard="/two"),
        Control("http-by-connect", *talk(connect(f"{WEB_NAME}:80"), get(WEB_NAME, "/three")), heard="/three"),
        Control("http-by-other-address", *talk(get(WEB_NAME, "/four"), at=(OTHER, 80)), heard="/four"),
        Control("http-two-requests", *talk(keep(WEB_NAME, "/five"), get(WEB_NAME, "/six"), at=at_web), heard="/six"),
        Control("http-chunked", *talk(_post(*chunked, path="/echo"), at=at_web), heard="hello"),
        Control("http-capitals", *talk(get("WEB.example.com", "/seven"), at=at_web), heard="/seven"),
        Control("http-dot", *talk(get(f"{WEB_NAME}.", "/eight"), at=at_web), heard="/eight"),
        Control("rule-allowed", *talk(get(WEB_NAME, "/public/nine"), at=at_web), heard="/public/nine", policy="paths"),
        Control("rule-head", *talk(get(WEB_NAME, "/public/x", method="HEAD"), at=at_web), heard="200", policy="paths"),
        Control("rule-query", *talk(get(WEB_NAME, "/public/x?y=%2e"), at=at_web), heard="?y=%2e", policy="paths"),
    ]


_KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
_UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", _KEY)
_H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")


def _two(second: str) -> tuple[str, dict[str, Any]]:
    """An allowed request by the proxy, and another on the same connection."""
    return talk(keep(WEB_NAME, f"http://{WEB_NAME}/"), second)


def _post(headers: str, body: str, path: str = "/") -> str:
    return f"POST {path} HTTP/1.1\r\nHost: {WEB_NAME}\r\n{headers}\r\n{body}"


ALL = (hosts_that_differ, tunnels, smuggled, rules)
