"""Frames: how the output of a process is told. One byte kind, four bytes length (big-endian), payload.

Released kinds decode for ever, and a reader skips kinds that it does not know.
"""

import json
import struct
from collections.abc import Mapping

STDOUT = 1
STDERR = 2
PTY = 3
START = 16
END = 17
KEEPALIVE = 18
DEADLINE = 19

CONTENT_TYPE = "application/vnd.warren.frames"
PAYLOAD_LIMIT = 65_536

_HEAD = struct.Struct(">BI")
HEAD_BYTES = _HEAD.size

Facts = Mapping[str, int | str]


def frame(kind: int, payload: bytes = b"") -> bytes:
    if len(payload) > PAYLOAD_LIMIT:
        raise ValueError(f"a frame of {len(payload)} bytes; the limit is {PAYLOAD_LIMIT}")
    return _HEAD.pack(kind, len(payload)) + payload


def facts_frame(kind: int, facts: Facts) -> bytes:
    return frame(kind, json.dumps(facts, separators=(",", ":")).encode())


def output_frames(chunks: list[tuple[int, bytes]]) -> bytes:
    """Frame a run of output in one copy; chunks larger than a frame become several."""
    parts: list[bytes] = []
    for kind, data in chunks:
        for at in range(0, len(data), PAYLOAD_LIMIT):
            piece = data if len(data) <= PAYLOAD_LIMIT else data[at : at + PAYLOAD_LIMIT]
            parts.append(_HEAD.pack(kind, len(piece)))
            parts.append(piece)
    return b"".join(parts)


def unframe(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """The whole frames at the start of `data`, and the bytes of a last one that is not complete."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while len(data) - at >= HEAD_BYTES:
        kind, length = _HEAD.unpack_from(data, at)
        if length > PAYLOAD_LIMIT:
            raise ValueError(f"a frame of {length} bytes; the limit is {PAYLOAD_LIMIT}")
        if len(data) - at - HEAD_BYTES < length:
            break
        found.append((kind, data[at + HEAD_BYTES : at + HEAD_BYTES + length]))
        at += HEAD_BYTES + length
    return found, data[at:]
