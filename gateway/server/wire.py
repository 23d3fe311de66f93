"""How a reply's head is written, and what of a request's head is taken. No I/O."""

import http
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools

from gateway.errors import BadFraming
from gateway.upstream.parts import header_block

Pairs = Sequence[tuple[bytes, bytes]]

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_BODY = frozenset({204, 304})
OURS = frozenset({b"connection", b"transfer-encoding", b"keep-alive"})  # how a body ends is the server's to say
_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in http.HTTPStatus}


def reply_head(status: int, headers: Pairs, end: bytes) -> bytes:
    """The bytes of a reply's head. `end` are the lines that say how its body ends, and the date."""
    line = _LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return b"%b%b%b\r\n" % (line, header_block(headers), end)


def target_of(url: bytes, headers: Pairs) -> tuple[str, bytes, bytes]:
    """Path, raw path and query of a request's target."""
    if not url.startswith(b"/"):
        url = _without_authority(url, [value.lower() for name, value in headers if name == b"host"])
    raw, _, query = url.partition(b"?")
    path = unquote_to_bytes(raw) if b"%" in raw else raw
    return path.decode("utf-8", "replace"), raw, query


def _without_authority(url: bytes, hosts: list[bytes]) -> bytes:
    """An address in place of a path must be of the host that is asked: else two could be meant."""
    if url == b"*":
        return url
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        raise BadFraming("the request's target is neither a path nor an address") from None
    host = parsed.host or b""
    authority = host if parsed.port is None else b"%s:%d" % (host, parsed.port)
    if parsed.schema not in {b"http", b"https"} or hosts != [authority.lower()]:
        raise BadFraming("the request's target names another host than its Host header")
    return (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")


def check_coding(headers: Pairs, names: dict[bytes, bytes], version: str) -> None:
    """The parser has refused both length headers together, lengths that differ, and chunks that are not the last."""
    coding = names.get(b"transfer-encoding")
    if coding is not None and (coding.strip().lower() != b"chunked" or version == "1.0"):
        raise BadFraming("the body comes in a transfer coding that we do not speak")
    if len(names) != len(headers):
        seen = [name for name, _ in headers]
        for name in (b"host", b"content-length", b"transfer-encoding"):
            if seen.count(name) > 1:
                raise BadFraming(f"the request has more than one {name.decode()} header")


def scope_of(kind: str, head: dict[str, Any], is_secure: bool) -> dict[str, Any]:
    """An ASGI scope. `head` has what differs from request to request."""
    secure, plain = ("https", "http") if kind == "http" else ("wss", "ws")
    return {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.5"},
        "scheme": secure if is_secure else plain,
        "root_path": "",
        "state": {},
        "extensions": {} if kind == "http" else {"websocket.http.response": {}},
        **head,
    }
