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


def header_block(headers: Headers) -> bytes:
    """The lines of these headers. Refuses what would be more lines than that."""
    parts: list[bytes] = []
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    block = b"".join(parts)
    lines = len(headers)
    if block.count(b"\n") != lines or block.count(b"\r") != lines or b"\0" in block:
        raise BadField("headers", "", "a header has a line break or a zero in it")
    return block


def request_head(method: str, target: str, host: bytes, lines: Sequence[bytes]) -> bytes:
    """The bytes of a request's head. `lines` are whole ones: blocks of headers, and how long the body is."""
    if not TARGET.fullmatch(target):
        raise BadField("path", target, "has characters that must be percent-encoded")
    if method not in METHODS and not METHOD.fullmatch(method):
        raise BadField("method", method, "must be an HTTP method in capital letters")
    return b"".join((f"{method} {target} HTTP/1.1\r\nhost: ".encode(), host, b"\r\n", *lines, b"\r\n"))


def declared_length(headers: Headers) -> int | None:
    """The length that a body is said to have. Raises `BadField` for more than one and for what is no number."""
    found = [value for name, value in headers if name == b"content-length"]
    if not found:
        return None
    if len(found) > 1 or not LENGTH.fullmatch(found[0]):
        raise BadField("content-length", b", ".join(found), "must be one number")
    return int(found[0])
