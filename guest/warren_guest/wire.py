"""HTTP/1.1 requests, read strictly and without I/O.

A request means the same however its bytes are split. What a stricter or looser peer might read differently (two
lengths, bare line feeds, folded headers, odd chunk sizes) is refused, because poold and the guest must never disagree
about where a request ends.
"""

import enum
import json
import re
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl

HEAD_LIMIT = 32 * 1024
# A chunk-size line: hex digits, and extensions that nobody sends.
_CHUNK_LINE_LIMIT = 256
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e]*)?")
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[\x21-\x7e]*) HTTP/1\.1")
_HEADER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_DIGITS = re.compile(r"[0-9]{1,18}")

REASONS = {
    200: "OK",
    201: "Created",
    206: "Partial Content",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    416: "Range Not Satisfiable",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    504: "Gateway Timeout",
    507: "Insufficient Storage",
}


class WireError(Exception):
    """What arrived is not a request that this server reads. Nothing after it can be understood."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first part of a request. `path` is still percent-encoded; `length` is None for a chunked body."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    length: int | None

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


class _State(enum.Enum):
    HEAD = enum.auto()
    FIXED = enum.auto()
    CHUNK_SIZE = enum.auto()
    CHUNK_DATA = enum.auto()
    TRAILERS = enum.auto()


class Done:
    """The request that began with the last `Head` is complete."""


class Again:
    """Something was read that is of no interest to the caller."""


DONE = Done()
AGAIN = Again()


class Parser:
    """Bytes in, `Head`, body bytes and `DONE` out. After a `WireError` it is of no more use."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._state = _State.HEAD
        self._left = 0
        self._searched = 0
        self._trailers = 0

    def feed(self, data: bytes) -> None:
        self._data = data if self._at == len(self._data) else self._data[self._at :] + data
        self._at = 0

    @property
    def held(self) -> int:
        """Bytes that were fed and are not part of anything returned yet."""
        return len(self._data) - self._at

    def rest(self) -> bytes:
        """All that was fed and is not part of anything returned yet; from now on it is the caller's."""
        rest, self._data, self._at = self._data[self._at :], b"", 0
        return rest

    def next(self) -> Head | bytes | Done | None:
        """The next part of the stream, or None until more is fed."""
        while (part := self._step()) is AGAIN:
            pass
        return cast(Head | bytes | Done | None, part)

    def _step(self) -> "Head | bytes | Done | Again | None":
        match self._state:
            case _State.HEAD:
                return self._head()
            case _State.FIXED:
                return self._body() if self._left else self._done()
            case _State.CHUNK_DATA if self._left:
                return self._body()
            case _State.CHUNK_DATA:
                return self._chunk_end()
            case _State.CHUNK_SIZE:
                return self._chunk_size()
            case _State.TRAILERS:
                return self._trailer()

    def _head(self) -> Head | None:
        end = self._data.find(b"\r\n\r\n", max(self._at, self._at + self._searched - 3))
        if end - self._at > HEAD_LIMIT or (end < 0 and self.held > HEAD_LIMIT):
            raise WireError(f"the head of the request is larger than {HEAD_LIMIT} bytes")
        if end < 0:
            self._searched = self.held
            return None
        raw = self._data[self._at : end]
        self._at = end + 4
        self._searched = 0
        head = parse_head(raw)
        self._state = _State.CHUNK_SIZE if head.length is None else _State.FIXED
        self._left = head.length or 0
        self._trailers = 0
        return head

    def _body(self) -> bytes | None:
        if not self.held:
            return None
        whole = self._at == 0 and len(self._data) <= self._left
        piece = self._data if whole else self._data[self._at : self._at + self._left]
        self._at += len(piece)
        self._left -= len(piece)
        return piece

    def _line(self, limit: int) -> bytes | None:
        end = self._data.find(b"\r\n", self._at)
        if end - self._at > limit or (end < 0 and self.held > limit + 1):
            raise WireError("a line of the chunked body is too long")
        if end < 0:
            return None
        line = self._data[self._at : end]
        self._at = end + 2
        return line

    def _chunk_size(self) -> "Again | None":
        line = self._line(_CHUNK_LINE_LIMIT)
        if line is None:
            return None
        match = _CHUNK_SIZE.fullmatch(line)
        if match is None:
            raise WireError(f"{line[:40]!r} is not a chunk size")
        self._left = int(match[1], 16)
        self._state = _State.CHUNK_DATA if self._left else _State.TRAILERS
        return AGAIN

    def _chunk_end(self) -> "Again | None":
        if self.held < 2:
            return None
        if not self._data.startswith(b"\r\n", self._at):
            raise WireError("a chunk is longer than its size")
        self._at += 2
        self._state = _State.CHUNK_SIZE
        return AGAIN

    def _trailer(self) -> "Again | Done | None":
        """Skip one trailer, or end the request at the empty line after them."""
        line = self._line(HEAD_LIMIT)
        if line is None:
            return None
        if not line:
            return self._done()
        self._trailers += len(line)
        if self._trailers > HEAD_LIMIT or _HEADER_LINE.fullmatch(line) is None:
            raise WireError("a trailer is malformed or too long")
        return AGAIN

    def _done(self) -> Done:
        self._state = _State.HEAD
        return DONE


def parse_head(raw: bytes) -> Head:
    """Read a head without its empty line. Raises `WireError`."""
    first, *lines = raw.split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(first)
    if request is None:
        raise WireError(f"{first[:80]!r} is not an HTTP/1.1 request line")
    headers: dict[str, str] = {}
    for line in lines:
        match = _HEADER_LINE.fullmatch(line)
        if match is None:
            raise WireError(f"{line[:40]!r} is not a header")
        name, value = match[1].decode().lower(), match[2].decode("latin-1")
        if name in headers and name in ("content-length", "transfer-encoding"):
            raise WireError(f"{name} is given twice")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    path, _, query = request[2].decode().partition("?")
    return Head(request[1].decode(), path, _parse_query(query), headers, _body_length(headers))


def _parse_query(query: str) -> dict[str, str]:
    if not query:
        return {}
    try:
        return dict(parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=64))
    except ValueError as exc:
        raise WireError("the query is not UTF-8, or has more than 64 fields") from exc


def _body_length(headers: dict[str, str]) -> int | None:
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if length is not None and coding is not None:
        raise WireError("both Content-Length and Transfer-Encoding are given")
    if coding is not None:
        if coding.lower() != "chunked":
            raise WireError(f"Transfer-Encoding {coding[:40]!r} is not chunked")
        return None
    if length is None:
        return 0
    if _DIGITS.fullmatch(length) is None:
        raise WireError(f"Content-Length {length[:40]!r} is not a number")
    return int(length)


def to_json(value: Any) -> bytes:
    """Compact JSON that every reader accepts: a file name that is not UTF-8 shows `?` for its odd bytes."""
    return _ENCODER.encode(value).encode("utf-8", "replace")
