"""What the first bytes of a connection are: TLS, HTTP, or something else. No I/O."""

import re
from enum import Enum

MAX_LINE_BYTES = 64 * 1024
# Servers forgive much in a first line; what they could take for HTTP is HTTP here, and is read strictly later.
_METHOD = rb"[\r\n \t]*[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}"
_HTTP = re.compile(_METHOD + rb"[ \t](?:[^\r\n\x00]*[ \t])?HTTP/[0-9]", re.IGNORECASE)
_MAY_BE_HTTP = re.compile(_METHOD + rb"(?:[ \t][^\r\n\x00]*)?\r?|[\r\n \t]*")
_MAX_BLANK = 1024
_TOO_BLANK = re.compile(rb"[\r\n \t]{%d}" % _MAX_BLANK)  # no protocol begins like this; HTTP forgives it
_ALWAYS_LOOKED_AT = 2 * _MAX_BLANK
_HTTP_2 = b"PRI * HTTP/2.0"


class First(Enum):
    TLS = "tls"
    HTTP = "http"
    H2C = "h2c"
    OTHER = "other"
    UNCLEAR = "unclear"  # more bytes will tell


def read_first(data: bytes) -> First:
    """What a connection that begins with `data` is."""
    if data in (b"", b"\x16"):
        return First.UNCLEAR
    if data[0] == 0x16:
        return First.TLS if data[1] == 3 else First.OTHER
    if data.startswith(_HTTP_2):
        return First.H2C
    head = data[:MAX_LINE_BYTES]
    if _TOO_BLANK.match(head) or _HTTP.match(head):
        return First.HTTP
    if len(data) < MAX_LINE_BYTES and _MAY_BE_HTTP.fullmatch(head):
        return First.UNCLEAR
    return First.OTHER


def is_worth_a_look(data: bytearray, looked: int) -> bool:
    """Whether `read_first` may know more than it did when there were `looked` bytes.

    It reads a line from its beginning, and bytes may come one by one: a long line is looked at when it ends, or has
    grown by a part of itself.
    """
    is_short = looked < _ALWAYS_LOOKED_AT
    return is_short or len(data) >= looked + looked // 8 or any(data.find(end, looked) >= 0 for end in (b"\n", b"\0"))
