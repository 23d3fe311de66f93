"""Frames decode to what was framed, however they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warren_guest import frames

kinds = st.sampled_from([frames.STDOUT, frames.STDERR, frames.PTY])


@given(st.lists(st.tuples(kinds, st.binary(min_size=1, max_size=200))), st.integers(0, 1000))
def test_frames_cut_anywhere_decode_to_what_was_framed(chunks: list[tuple[int, bytes]], cut: int) -> None:
    data = frames.output_frames(chunks)
    first, rest = frames.unframe(data[:cut])
    second, rest = frames.unframe(rest + data[cut:])
    assert first + second == chunks
    assert rest == b""


def test_output_larger_than_a_frame_becomes_several() -> None:
    found, rest = frames.unframe(frames.output_frames([(1, b"x" * 150_000)]))
    assert [len(payload) for _, payload in found] == [65_536, 65_536, 18_928]
    assert rest == b""


def test_a_frame_beyond_the_limit_is_neither_made_nor_read() -> None:
    with pytest.raises(ValueError, match="limit"):
        frames.frame(1, b"x" * 65_537)
    with pytest.raises(ValueError, match="limit"):
        frames.unframe(b"\x01\x00\x01\x00\x01")


def test_the_bytes_of_a_start_frame_stay_as_released() -> None:
    made = frames.facts_frame(frames.START, {"pid": 12, "started_ms": 5, "output_bytes": 0})
    assert made == b'\x10\x00\x00\x00\x2a{"pid":12,"started_ms":5,"output_bytes":0}'
