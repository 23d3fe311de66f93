"""Heads of plain HTTP: a guest's requests, read strictly and written anew, and how long answers are. No I/O.

What two programs could read in two ways is not read at all. A request that passed is written from what was understood,
so that the server reads what was decided.
"""

import re
from dataclasses import dataclass, field

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 200
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_LINE = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([!-~]+) HTTP/1\.([01])")
_NAME = re.compile(_TOKEN + rb"{1,256}")
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_ABSOLUTE = re.compile(r"(?i:http)://([^/?#@\\]*)([/?][^#]*)?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[^:@/?#\[\]\\]{1,255})(?::([0-9]{1,5}))?")
# About this connection and not about the request, or made anew from what was understood.
_OURS = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization proxy-authenticate proxy-authentication-info te "
    b"trailer transfer-encoding content-length upgrade host expect".split()
)
# By which a request says another method or path than it has.
_OVERRIDES = frozenset(
    b"x-http-method-override x-http-method x-method-override x-original-url x-original-uri x-rewrite-url".split()
)


class BadHead(ValueError):
    """No request, or one that could be read in two ways. `why` is one word for programs."""

    def __init__(self, told: str, why: str = "bad_request") -> None:
        super().__init__(told)
        self.why = why


@dataclass(frozen=True)
class Authority:
    host: str  # as it was written: a name, or an address, with its brackets
    port: int | None

    @classmethod
    def read(cls, text: str) -> "Authority":
        found = _AUTHORITY.fullmatch(text)
        if found is None:
            raise BadHead(f"{text[:80]!r} is not a host and a port")
        port = None if found[2] is None else int(found[2])
        if port is not None and not 0 < port < 65_536:
            raise BadHead(f"{port} is not a port")
        return cls(found[1], port)


@dataclass(frozen=True)
class Request:
    method: str
    authority: Authority | None  # of the target, if it has one
    path: str  # with its query; empty for CONNECT
    host: Authority | None
    minor: int  # the version: HTTP/1.`minor`
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)  # those that go on as they are
    length: int = 0
    has_length: bool = False  # a length was said, if only 0
    is_chunked: bool = False
    wants_websocket: bool = False
    expects: bool = False  # to be told that the body is wanted
    keeps: bool = True  # the connection is for another request afterwards

    @property
    def has_override(self) -> bool:
        return any(name.lower().replace(b"_", b"-") in _OVERRIDES for name, _ in self.headers)

    @property
    def has_body(self) -> bool:
        return self.is_chunked or self.length > 0

    def written(self, host: str) -> bytes:
        """The request for the server of `host`, with nothing in it that was not understood."""
        lines = [f"{self.method} {self.path} HTTP/1.{self.minor}\r\nHost: {host}\r\n".encode("ascii")]
        lines += [b"%b: %b\r\n" % header for header in self.headers]
        if self.is_chunked:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        elif self.has_length:
            lines.append(b"Content-Length: %d\r\n" % self.length)
        if self.expects:
            lines.append(b"Expect: 100-continue\r\n")
        if self.wants_websocket:
            lines.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
        elif self.minor == 0:
            lines.append(b"Connection: close\r\n")
        return b"".join(lines) + b"\r\n"


def read_request(head: bytes) -> Request:
    """The request whose head this is, with its empty line. Raises `BadHead`."""
    first, *rest = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise _not_a_line(first)
    fields = [_field(each) for each in rest]
    if len(fields) > MAX_HEADERS:
        raise BadHead("the request has too many headers")
    method, minor = line[1].decode("ascii"), int(line[3])
    authority, path = _target(method, line[2].decode("ascii"))
    options = _words(fields, b"connection")
    length, is_chunked = _framing(fields, minor)
    dropped = _OURS | {option.encode("latin-1") for option in options}
    return Request(
        method=method,
        authority=authority,
        path=path,
        host=_host(fields, minor),
        minor=minor,
        headers=[(name, value) for name, value in fields if name.lower() not in dropped],
        length=length or 0,
        has_length=length is not None,
        is_chunked=is_chunked,
        wants_websocket=_upgrade(fields, options, has_body=bool(length) or is_chunked),
        expects=_expects(fields),
        keeps=minor == 1 and "close" not in options and "close" not in _words(fields, b"proxy-connection"),
    )


def _not_a_line(first: bytes) -> BadHead:
    if first.startswith(b"PRI * HTTP/2"):
        return BadHead("HTTP/2 without TLS is not spoken here", "h2c")
    if not first or re.search(rb"[ \t]HTTP/[0-9]", first, re.IGNORECASE):
        return BadHead("the first line of the request is not well-formed")
    return BadHead("this is not HTTP", "not_http")


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise BadHead("a header is not well-formed")
    return name, value


def _all(fields: list[tuple[bytes, bytes]], wanted: bytes) -> list[bytes]:
    return [value for name, value in fields if name.lower() == wanted]


def _words(fields: list[tuple[bytes, bytes]], wanted: bytes) -> set[str]:
    listed = b",".join(_all(fields, wanted)).decode("latin-1").lower().split(",")
    return {word.strip() for word in listed} - {""}


def _target(method: str, target: str) -> tuple[Authority | None, str]:
    if method == "CONNECT":
        authority = Authority.read(target)
        if authority.port is None:
            raise BadHead("CONNECT needs a port")
        return authority, ""
    if target == "*" and method == "OPTIONS":
        return None, target
    if target.startswith("/") and "#" not in target:
        return None, target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise BadHead("the target of the request is neither a path nor an http:// address")
    path = absolute[2] or ("*" if method == "OPTIONS" else "/")
    return Authority.read(absolute[1]), f"/{path}" if path.startswith("?") else path


def _host(fields: list[tuple[bytes, bytes]], minor: int) -> Authority | None:
    hosts = _all(fields, b"host")
    if not hosts and minor == 0:
        return None
    if len(hosts) != 1:
        raise BadHead(f"the request has {len(hosts)} Host headers, and needs one")
    return Authority.read(hosts[0].decode("latin-1"))


def _framing(fields: list[tuple[bytes, bytes]], minor: int) -> tuple[int | None, bool]:
    lengths, codings = _all(fields, b"content-length"), _all(fields, b"transfer-encoding")
    if codings:
        if lengths or minor == 0:
            raise BadHead("the length of the body is said in two ways")
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise BadHead("the only transfer encoding is chunked")
        return None, True
    if not lengths:
        return None, False
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise BadHead("the length of the body is not one number")
    return int(lengths[0]), False


def _upgrade(fields: list[tuple[bytes, bytes]], options: set[str], *, has_body: bool) -> bool:
    wanted = _words(fields, b"upgrade")
    if _all(fields, b"http2-settings") or any(word.startswith(("h2c", "http/2")) for word in wanted):
        raise BadHead("an upgrade to HTTP/2 without TLS is not allowed", "h2c")
    return wanted == {"websocket"} and "upgrade" in options and not has_body


def _expects(fields: list[tuple[bytes, bytes]]) -> bool:
    expected = _words(fields, b"expect")
    if expected - {"100-continue"}:
        raise BadHead("nobody knows what this request expects")
    return bool(expected)


@dataclass(frozen=True)
class Answer:
    """How long an answer is. `length` None: until the server closes, if it is not chunked either."""

    status: int
    length: int | None
    is_chunked: bool
    keeps: bool  # the server takes another request on this connection

    @property
    def is_interim(self) -> bool:
        return 100 <= self.status < 200 and self.status != 101

    @property
    def is_until_close(self) -> bool:
        return self.length is None and not self.is_chunked


UNREADABLE = Answer(0, None, is_chunked=False, keeps=False)
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?", re.DOTALL)


def read_answer(head: bytes, method: str) -> Answer:
    """How long the answer to a request of `method` is. What is not clear is until the server closes."""
    first, *rest = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    line = _STATUS.fullmatch(first)
    if line is None:
        return UNREADABLE
    try:
        fields = [_field(each) for each in rest]
    except BadHead:
        return UNREADABLE
    status, options = int(line[2]), _words(fields, b"connection")
    keeps = "close" not in options and (line[1] == b"1" or "keep-alive" in options)
    if status < 200 or status in (204, 304) or method == "HEAD":
        return Answer(status, 0, is_chunked=False, keeps=keeps)
    lengths, codings = set(_all(fields, b"content-length")), _all(fields, b"transfer-encoding")
    if [coding.lower() for coding in codings] == [b"chunked"] and not lengths:
        return Answer(status, None, is_chunked=True, keeps=keeps)
    if not codings and len(lengths) == 1 and _LENGTH.fullmatch(length := lengths.pop()):
        return Answer(status, int(length), is_chunked=False, keeps=keeps)
    return Answer(status, None, is_chunked=False, keeps=False)
