"""The first words of TLS, made by hand, so that they can be wrong in every way."""

import struct
from collections.abc import Sequence

SERVER_NAME, GROUPS, SIGNATURES, VERSIONS, KEY_SHARE, ECH = 0, 10, 13, 43, 51, 0xFE0D
Extension = tuple[int, bytes]
# What every server wants to hear besides.
_REST: tuple[Extension, ...] = (
    (GROUPS, bytes.fromhex("0002001d")),
    (SIGNATURES, bytes.fromhex("0006040308040401")),
    (VERSIONS, bytes.fromhex("0403040303")),
    (KEY_SHARE, bytes.fromhex("0024001d0020") + bytes(range(32))),
)


def names(*hosts: bytes, kind: int = 0) -> Extension:
    """The extension that says which host is meant; with more than one it can be read in two ways."""
    listed = b"".join(struct.pack("!BH", kind, len(host)) + host for host in hosts)
    return SERVER_NAME, struct.pack("!H", len(listed)) + listed


def handshake(*extensions: Extension) -> bytes:
    """A ClientHello, without the records that carry it."""
    listed = b"".join(struct.pack("!HH", kind, len(data)) + data for kind, data in (*extensions, *_REST))
    body = b"\x03\x03" + bytes(32) + b"\x20" + bytes(32)
    body += bytes.fromhex("0006130113021303") + b"\x01\x00" + struct.pack("!H", len(listed)) + listed
    return b"\x01" + len(body).to_bytes(3, "big") + body


def records(message: bytes, sizes: Sequence[int] = ()) -> bytes:
    """The message in records of these sizes, and the rest in one."""
    made = b""
    for size in (*sizes, len(message)):
        piece, message = message[:size], message[size:]
        if piece:
            made += b"\x16\x03\x01" + struct.pack("!H", len(piece)) + piece
    return made


def hello(host: str) -> bytes:
    """An honest one."""
    return records(handshake(names(host.encode())))


def ech(inner: bytes = bytes(64)) -> Extension:
    """The extension of an encrypted ClientHello, its outer form."""
    return ECH, b"\x00" + bytes.fromhex("00010001") + b"\x07" + struct.pack("!H", 32) + bytes(32) + (
        struct.pack("!H", len(inner)) + inner
    )
