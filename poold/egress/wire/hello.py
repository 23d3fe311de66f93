"""The first words of TLS, read far enough to know which name is meant.

Whatever could be read in two ways is not read at all. A server that skips what we stumble over, or takes the second of
two names where we took the first, would let a guest speak to somebody other than the one that was allowed. So
everything that RFC 8446 and RFC 6066 forbid raises `NotTls`, and so do three things that they leave open: a name that
is not plain ASCII, another kind of name than of a host, and anything behind the hello in its last record. A hello
without the extension for names has no name, which is something else: `sni` is None then.
"""

from collections.abc import Iterator
from dataclasses import dataclass

MAX_HELLO_BYTES = 65536  # with the heads of its records
# Clients need one or two. It is read anew with each segment, and this is what a guest can make that cost.
MAX_RECORDS = 128

_HANDSHAKE = 22
_CLIENT_HELLO = 1
_MAX_RECORD_BYTES = 1 << 14
_RECORD_HEAD_BYTES = 5
_MESSAGE_HEAD_BYTES = 4
_MINORS = (1, 2, 3)  # of 3.x, which is TLS 1.x; 3.0 is SSL, and later versions say 3.3 here
_RANDOM_BYTES = 32
_MAX_SESSION_ID_BYTES = 32

_SERVER_NAME = 0
_HOST_NAME = 0
# An encrypted hello, outside or inside, as it is now, as its drafts were, and as the extension before it was.
_ECH = frozenset({0xFE08, 0xFE09, 0xFE0A, 0xFE0B, 0xFE0C, 0xFE0D, 0xFD00, 0xFF02, 0xFF03, 0xFFCE})


class NotTls(ValueError):
    """These bytes are not the beginning of TLS, or not in a way that all servers read alike."""


@dataclass(frozen=True)
class Hello:
    """What a client said before anything was encrypted. `sni` is as it was written: it may be anything but a name."""

    sni: str | None
    has_ech: bool


def read_hello(data: bytes) -> Hello | None:
    """The hello that `data` begins with, or None if more bytes are needed. Raises `NotTls` as soon as it never can be.

    With `MAX_HELLO_BYTES` it never asks for more.
    """
    parts: list[bytes] = []
    promised = has = 0
    needs = _MESSAGE_HEAD_BYTES
    for part, size in _fragments(data):
        parts.append(part)
        promised += size
        if has < _MESSAGE_HEAD_BYTES:
            needs = _message_bytes(b"".join(parts)[:_MESSAGE_HEAD_BYTES])
        has += len(part)
        if has >= _MESSAGE_HEAD_BYTES and promised > needs:
            raise NotTls("the record has more than a hello in it")
        if has == needs:
            return _hello(b"".join(parts)[_MESSAGE_HEAD_BYTES:])
    if len(data) >= MAX_HELLO_BYTES:
        raise NotTls("the hello is too long")
    return None


def _fragments(data: bytes) -> Iterator[tuple[bytes, int]]:
    """What the records in `data` hold, the last of them perhaps not to its end, each with how much it says it holds."""
    at = 0
    for _ in range(MAX_RECORDS):
        head = data[at : at + _RECORD_HEAD_BYTES]
        if not head:
            return
        size = _record_bytes(head)
        at += _RECORD_HEAD_BYTES
        part = data[at : at + size]
        at += size
        if part:
            yield part, size
        if len(part) < size or len(head) < _RECORD_HEAD_BYTES:
            return
    if at < len(data):
        raise NotTls("the hello is in too many records")


def _record_bytes(head: bytes) -> int:
    """How much the record holds, as far as its head is there."""
    if head[0] != _HANDSHAKE:
        raise NotTls("it is no record of a handshake")
    if (len(head) > 1 and head[1] != 3) or (len(head) > 2 and head[2] not in _MINORS):
        raise NotTls("it is a record of no known version")
    if len(head) < _RECORD_HEAD_BYTES:
        return 0
    size = int.from_bytes(head[3:])
    if not 0 < size <= _MAX_RECORD_BYTES:
        raise NotTls("the record is empty or too long")
    return size


def _message_bytes(head: bytes) -> int:
    """How long the message is with its head, as far as that is there."""
    if head[0] != _CLIENT_HELLO:
        raise NotTls("it is no hello of a client")
    if len(head) < _MESSAGE_HEAD_BYTES:
        return _MESSAGE_HEAD_BYTES
    size = _MESSAGE_HEAD_BYTES + int.from_bytes(head[1:])
    if not _MESSAGE_HEAD_BYTES < size <= MAX_HELLO_BYTES - _RECORD_HEAD_BYTES:
        raise NotTls("the hello is empty or too long")
    return size


class _Bytes:
    """Bytes that are taken from the front. Raises `NotTls` if there are too few."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise NotTls("a length in the hello is wrong")
        self._at += count
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int) -> bytes:
        """Bytes with their length, of `size` bytes, before them."""
        return self.take(self.number(size))

    def end(self) -> None:
        if self.has_more:
            raise NotTls("a length in the hello is wrong")


def _hello(message: bytes) -> Hello:
    body = _Bytes(message)
    major, minor = body.take(2)
    if major != 3 or minor not in _MINORS:
        raise NotTls("the hello is of no known version")
    body.take(_RANDOM_BYTES)
    session_id, ciphers, compressions = body.vector(1), body.vector(2), body.vector(1)
    if len(session_id) > _MAX_SESSION_ID_BYTES or not ciphers or len(ciphers) % 2 or not compressions:
        raise NotTls("the hello offers what cannot be")
    extensions = _extensions(body.vector(2)) if body.has_more else {}
    body.end()
    name = extensions.get(_SERVER_NAME)
    return Hello(sni=None if name is None else _host_name(name), has_ech=not _ECH.isdisjoint(extensions))


def _extensions(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    rest = _Bytes(data)
    while rest.has_more:
        kind = rest.number(2)
        if kind in found:
            raise NotTls("the hello has the same extension twice")
        found[kind] = rest.vector(2)
    return found


def _host_name(extension: bytes) -> str:
    outer = _Bytes(extension)
    names = _Bytes(outer.vector(2))
    outer.end()
    kind, name = names.number(1), names.vector(2)
    names.end()
    if kind != _HOST_NAME or not name or not all(0x21 <= byte <= 0x7E for byte in name):
        raise NotTls("the name is not one plain name of a host")
    return name.decode("ascii")
