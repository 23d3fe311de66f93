"""Frame streams: split anywhere they mean the same, and an end is never invented."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.errors import GuestError
from poold.link.frames import LAST, MAX_FRAME, Kind, read_frames

frames_before_the_end = st.lists(
    st.tuples(st.sampled_from([kind for kind in Kind if kind not in LAST]), st.binary(max_size=300)), max_size=20
)
ends = st.sampled_from(sorted(LAST))


def encode(kind: int, payload: bytes) -> bytes:
    return bytes([kind]) + len(payload).to_bytes(4, "big") + payload


def read(chunks: Iterable[bytes]) -> tuple[list[tuple[Kind, bytes]], bool]:
    """The frames, and whether the stream came to its end."""

    async def source() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def collect() -> tuple[list[tuple[Kind, bytes]], bool]:
        got = []
        try:
            async for frame in read_frames(source()):
                got.append(frame)
        except GuestError:
            return got, False
        return got, True

    return asyncio.run(collect())


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted({place % (len(data) + 1) for place in at}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(frames_before_the_end, ends, st.binary(max_size=40), st.lists(st.integers(0, 10_000), max_size=30))
def test_any_split_of_a_stream_gives_the_same_frames(
    frames: list[tuple[Kind, bytes]], last: Kind, behind: bytes, places: list[int]
) -> None:
    sent = [*frames, (last, b"{}")]
    stream = b"".join(encode(*frame) for frame in sent)
    assert read(cut(stream, places)) == (sent, True)
    assert read([stream + behind]) == (sent, True)  # nothing behind the last frame is looked at


@given(frames_before_the_end, st.integers(0, 10_000))
def test_a_stream_that_breaks_off_raises(frames: list[tuple[Kind, bytes]], place: int) -> None:
    stream = b"".join(encode(*frame) for frame in [*frames, (Kind.END, b"{}")])
    got, ended = read([stream[: place % len(stream)]])
    assert not ended
    assert got == frames[: len(got)]


@given(st.lists(st.integers(0, 255).filter(lambda kind: kind not in frozenset(Kind)), max_size=20))
def test_unknown_kinds_are_skipped(kinds: list[int]) -> None:
    stream = b"".join(encode(kind, b"from a later version") for kind in kinds)
    assert read([stream + encode(Kind.END, b"{}")]) == ([(Kind.END, b"{}")], True)


@pytest.mark.parametrize("kind", [1, 17, 200])
def test_a_frame_that_is_too_long_is_refused_before_it_is_read(kind: int) -> None:
    assert read([bytes([kind]) + (MAX_FRAME + 1).to_bytes(4, "big")]) == ([], False)
    assert read([bytes([kind]) + b"\xff\xff\xff\xff"]) == ([], False)


def test_the_longest_frame_is_read() -> None:
    payload = bytes(MAX_FRAME)
    stream = encode(Kind.STDOUT, payload) + encode(Kind.END, b"{}")
    assert read([stream]) == ([(Kind.STDOUT, payload), (Kind.END, b"{}")], True)


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_a_guest_error(data: bytes) -> None:
    read([data])
