"""The output of one process: nothing is lost to whoever reads it, however slowly."""

import random

import pytest
from warren_guest.frames import PAYLOAD_LIMIT
from warren_guest.output import KEPT, Output, Reader

SIZES = (1, 90, 500, 4000, 4095, 4096, 5000, 60_000, 65_036, PAYLOAD_LIMIT)


def stalled(output: Output, reader: Reader, choose: random.Random) -> bytes:
    """What a process writes until it is asked to wait for the reader, who takes some of it now and then."""
    written = bytearray()
    while not output.is_full:
        data = choose.randbytes(choose.choice(SIZES))
        output.append(choose.choice((1, 2)) if choose.random() < 0.2 else 1, data)
        written += data
        if choose.random() < 0.2 and len(written) < KEPT // 2:
            reader.take()
            written.clear()
    return bytes(written)


@pytest.mark.parametrize("seed", range(300))
def test_nothing_that_a_reader_has_not_taken_is_dropped(seed: int) -> None:
    output = Output()
    reader = output.attach(0)
    written = stalled(output, reader, random.Random(seed))
    assert output.oldest <= reader.position
    assert b"".join(data for _, data in reader.take()) == written


def test_a_reader_inside_a_chunk_that_was_added_to_loses_nothing() -> None:
    output = Output()
    reader = output.attach(0)
    output.append(1, b"a" * 4000)
    reader.take()
    written = b""
    for data in (b"b" * 90, b"c" * PAYLOAD_LIMIT, b"d" * PAYLOAD_LIMIT, b"e" * 65_036, b"f" * PAYLOAD_LIMIT):
        if not output.is_full:
            output.append(1, data)
            written += data
    assert b"".join(data for _, data in reader.take()) == written


def test_without_readers_the_last_bytes_are_kept_and_nobody_waits() -> None:
    output = Output()
    for number in range(100):
        output.append(1, bytes([number]) * 10_000)
        assert not output.is_full
    kept = b"".join(data for _, data in output.attach(0).take())
    assert KEPT - 10_000 <= len(kept) <= KEPT
    assert kept.endswith(bytes([99]) * 10_000)
