"""How a request's head is written, and what of an answer's head is allowed."""

import functools
import re
from collections.abc import Sequence

from contract.errors import BadField

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 200
MAX_KNOWN_CHARS = 500  # of a target that is remembered

TARGET = re.compile(r"/[!-~]*")
LENGTH = re.compile(rb"[0-9]{1,18}")
METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"})
METHOD = re.compile(r"[A-Z]{1,20}")

Headers = Sequence[tuple[bytes, bytes]]
_LINE = b": ".join  # of a name and a value


def header_block(headers: Headers) -> bytes:
    """The lines of these headers. Refuses what would be more lines than that."""
    if not headers:
        return b""
    block = b"\r\n".join(map(_LINE, headers))
    breaks = len(headers) - 1
    if block.count(b"\n") != breaks or block.count(b"\r") != breaks or b"\0" in block:
        raise BadField("headers", "", "a header has a line break or a zero in it")
    return block + b"\r\n"


def request_head(method: str, target: str, host: bytes, lines: Sequence[bytes]) -> bytes:
    """The bytes of a request's head. `lines` are whole ones: blocks of headers, and how long the body is."""
    line = _known_line if len(target) <= MAX_KNOWN_CHARS else _line
    return b"".join((line(method, target), host, b"\r\n", *lines, b"\r\n"))


def _line(method: str, target: str) -> bytes:
    if not TARGET.fullmatch(target):
        raise BadField("path", target, "has characters that must be percent-encoded")
    if method not in METHODS and not METHOD.fullmatch(method):
        raise BadField("method", method, "must be an HTTP method in capital letters")
    return f"{method} {target} HTTP/1.1\r\nhost: ".encode()


_known_line = functools.lru_cache(1024)(_line)


def declared_length(headers: Headers) -> int | None:
    """The length that a body is said to have. Raises `BadField` for more than one and for what is no number."""
    found = [value for name, value in headers if name == b"content-length"]
    if not found:
        return None
    if len(found) > 1 or not LENGTH.fullmatch(found[0]):
        raise BadField("content-length", b", ".join(found), "must be one number")
    return int(found[0])
