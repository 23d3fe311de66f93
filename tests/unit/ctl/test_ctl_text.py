"""The parts without I/O: the end of long lists, streams of events, keys that leave a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.ctl.attach import detach_byte
from poold.ctl.client import Event, parse_events
from poold.ctl.errors import UsageError
from poold.ctl.tail import last_rows


@given(st.sets(st.integers(1, 3000), max_size=300), st.integers(1, 50))
def test_the_last_rows_are_found_whatever_the_gaps(numbers: set[int], count: int) -> None:
    rows = [{"id": number} for number in sorted(numbers)]
    found = last_rows(lambda after: [row for row in rows if row["id"] > after][:count], count)
    assert found == rows[-count:]


def test_events_are_read_as_the_standard_says() -> None:
    lines = [b": hello\n", b"\n", b"id: 4\r\n", b"event: a\r\n", b'data: {"x":\r\n', b"data: 1}\r\n", b"\r\n"]
    cut_short = [b"event: b\n", b"data: 1\n"]
    assert list(parse_events([*lines, *cut_short])) == [Event("4", "a", {"x": 1})]


def test_detach_keys() -> None:
    assert [detach_byte(name) for name in ("ctrl-]", "CTRL-A", "^\\", "none")] == [b"\x1d", b"\x01", b"\x1c", b""]
    for name in ("", "q", "ctrl-", "ctrl-1", "ctrl-ab"):
        with pytest.raises(UsageError):
            detach_byte(name)
