"""How a request's head is written, and what of an answer's head is allowed."""

import re
from collections.abc import Sequence

from contract.errors import BadField

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 200

TARGET = re.compile(r"/[!-~]*")
LENGTH = re.compile(rb"[0-9]{1,18}")
METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"})
METHOD = re.compile(r"[A-Z]{1,20}")

Headers = Sequence[tuple[bytes, bytes]]


def request_head(method: str, target: str, host: bytes, headers: Headers, framing: bytes = b"") -> bytes:
    """The bytes of a request's head. `framing` is the line that says how long the body is."""
    if not TARGET.fullmatch(target):
        raise BadField("path", target, "has characters that must be percent-encoded")
    if method not in METHODS and not METHOD.fullmatch(method):
        raise BadField("method", method, "must be an HTTP method in capital letters")
    parts = [f"{method} {target} HTTP/1.1\r\nhost: ".encode(), host, b"\r\n"]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    parts += (framing, b"\r\n")
    head = b"".join(parts)
    lines = len(headers) + 3 + (1 if framing else 0)
    if head.count(b"\n") != lines or head.count(b"\r") != lines or b"\0" in head:
        raise BadField("headers", "", "a header has a line break or a zero in it")
    return head


def declared_length(headers: Headers) -> int | None:
    """The length that a body is said to have. Raises `BadField` for more than one and for what is no number."""
    found = [value for name, value in headers if name == b"content-length"]
    if not found:
        return None
    if len(found) > 1 or not LENGTH.fullmatch(found[0]):
        raise BadField("content-length", b", ".join(found), "must be one number")
    return int(found[0])
