"""The parser of a guest's events: any split of the bytes gives the same events, and nonsense is a `GuestError`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.errors import GuestError
from poold.link import GuestEvent, read_events
from poold.link.events import GAP, MAX_EVENT_BYTES, MAX_NUMBER


async def in_chunks(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def read_all(*chunks: bytes) -> list[GuestEvent]:
    return [event async for batch in read_events(in_chunks(list(chunks))) for event in batch]


def block(event: GuestEvent) -> bytes:
    head = b"" if event.number is None else b"id: %d\n" % event.number
    return head + b"event: %b\ndata: %b\n\n" % (event.kind.encode(), orjson.dumps(event.data))


VALUES = st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(max_size=20)
DATA = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)
KINDS = st.from_regex(r"[a-z_]{1,32}", fullmatch=True).filter(lambda kind: kind != GAP)
EVENTS = st.builds(GuestEvent, st.integers(1, MAX_NUMBER), KINDS, DATA) | st.builds(
    GuestEvent, st.none(), st.just(GAP), DATA
)
COMMENTS = st.sampled_from([b":\n\n", b": still here\n\n", b"\n\n"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[GuestEvent], bytes, list[bytes]]:
    """Events, the bytes that tell them with comments between, and these bytes in pieces."""
    events = draw(st.lists(EVENTS, max_size=6))
    whole = b"".join(draw(st.just(b"") | COMMENTS) + block(event) for event in events)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    return events, whole, [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@given(streams())
def test_any_split_gives_the_same_events(stream: tuple[list[GuestEvent], bytes, list[bytes]]) -> None:
    events, whole, pieces = stream
    assert asyncio.run(read_all(whole)) == events
    assert asyncio.run(read_all(*pieces)) == events
    assert asyncio.run(read_all(*(bytes([byte]) for byte in whole))) == events


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_are_events_or_a_guest_error(pieces: list[bytes]) -> None:
    with contextlib.suppress(GuestError):
        asyncio.run(read_all(*pieces))


def deep(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


NONSENSE: dict[str, bytes] = {
    "no kind": b"id: 1\ndata: {}\n\n",
    "an odd kind": b"id: 1\nevent: Robert'); DROP TABLE\ndata: {}\n\n",
    "a long kind": b"id: 1\nevent: " + b"a" * 33 + b"\ndata: {}\n\n",
    "no number at all": b"event: stopped\ndata: {}\n\n",
    "a gap with a number": b"id: 1\nevent: gap\ndata: {}\n\n",
    "no number": b"id: x\nevent: a\ndata: {}\n\n",
    "a negative number": b"id: -1\nevent: a\ndata: {}\n\n",
    "nought": b"id: 0\nevent: a\ndata: {}\n\n",
    "a huge number": b"id: 99999999999999999999\nevent: a\ndata: {}\n\n",
    "just too large a number": b"id: %d\nevent: a\ndata: {}\n\n" % (MAX_NUMBER + 1),
    "a foreign digit": "id: ²\nevent: a\ndata: {}\n\n".encode(),
    "no JSON": b"id: 1\nevent: a\ndata: {\n\n",
    "no object": b"id: 1\nevent: a\ndata: []\n\n",
    "a lone surrogate": b'id: 1\nevent: a\ndata: {"a": "\\ud800"}\n\n',
    "not UTF-8": b"\xff\xfe\n\n",
    "deeper than can be written": b"id: 1\nevent: a\ndata: " + deep(300) + b"\n\n",
    "deeper than a reply can have it": b"id: 1\nevent: a\ndata: " + deep(250) + b"\n\n",
    "deeper than can be read": b"id: 1\nevent: a\ndata: " + deep(5000) + b"\n\n",
}


@pytest.mark.parametrize("said", NONSENSE.values(), ids=NONSENSE.keys())
async def test_nonsense_is_a_guest_error(said: bytes) -> None:
    with pytest.raises(GuestError):
        await read_all(said)


@pytest.mark.parametrize("size", [1 << 10, 1 << 16])
async def test_an_event_without_an_end_is_broken_off(size: int) -> None:
    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += size
            yield b"x" * size

    taken = 0
    with pytest.raises(GuestError, match="longer than"):
        async for _ in read_events(endless()):
            pass
    assert taken <= MAX_EVENT_BYTES + 2 * size


async def test_a_long_event_may_come_byte_by_byte() -> None:
    """It took minutes when each byte was searched and copied with all before it."""
    data: dict[str, Any] = {"a": "x" * (MAX_EVENT_BYTES - 1000)}
    event = GuestEvent(1, "long", data)
    pieces = [bytes([byte]) for byte in block(event)]
    assert await read_all(*pieces) == [event]
