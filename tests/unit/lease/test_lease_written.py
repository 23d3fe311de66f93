"""The lease as data: what was written is read, what makes no sense is refused, what a later version says is kept."""

import contextlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_made import BOOT, HOLD_MS, HOLDER, OTHER, host, lease, taken

from poold.lease.written import MAX_BYTES, BadLease, Lease, State, first


def test_what_was_written_is_read() -> None:
    for each in (
        lease(),
        lease(taken=(taken(), taken(2, 3, "c", 7))),
        lease(root=0),
        lease(root=0, taken=(taken(),)),
        lease(has_left=True),
        lease(has_left=True, heir="c"),
    ):
        assert Lease.decode(each.encode(), "a") == each


def test_what_a_later_version_adds_is_kept_by_whoever_writes_it_again() -> None:
    data = orjson.loads(lease().encode()) | {"zone": {"name": "x"}}
    found = Lease.decode(orjson.dumps(data), "a")
    again = orjson.loads(found.taken_by("b", 1).encode())
    assert again["zone"] == {"name": "x"}
    assert again["epoch"] == found.epoch + 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("version", None),
        ("host", "b"),
        ("host", "../b"),
        ("epoch", 0),
        ("epoch", -1),
        ("epoch", 1 << 60),
        ("epoch", "3"),
        ("root", 4),
        ("root", -1),
        ("holder", "me"),
        ("holder", ""),
        ("hold_ms", 0),
        ("hold_ms", 1 << 40),
        ("beat", -1),
        ("boot", "../../etc"),
        ("record", None),
        ("record", []),
        ("record", {"name": "b", "address": "http://127.0.0.1:1"}),
        ("record", {"name": "a", "address": "http://example.com:1"}),
        ("state", "empty"),
        ("state", None),
        ("has_left", "yes"),
        ("heir", "B B"),
        ("taken", {}),
        ("taken", [{"root": 2, "last": 1, "by": "b", "by_epoch": 1}]),
        ("taken", [{"root": 1, "last": 9, "by": "b", "by_epoch": 1}]),
        ("taken", [{"root": 1, "last": 1, "by": "B", "by_epoch": 1}]),
        ("taken", [{"root": 1, "last": 1, "by": "b", "by_epoch": 0}]),
    ],
)
def test_what_makes_no_sense_is_refused(field: str, value: object) -> None:
    data = orjson.loads(lease().encode()) | {field: value}
    with pytest.raises(BadLease, match="lease of host 'a'"):
        Lease.decode(orjson.dumps(data), "a")


def test_what_is_too_large_is_not_even_read() -> None:
    with pytest.raises(BadLease, match="bytes"):
        Lease.decode(b" " * MAX_BYTES + lease().encode(), "a")


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    with pytest.raises(BadLease):
        Lease.decode(data, "a")


@given(st.integers(0, len(lease(taken=(taken(),)).encode()) - 1), st.integers(0, 255))
def test_a_changed_byte_gives_a_lease_or_is_refused(at: int, byte: int) -> None:
    data = bytearray(lease(taken=(taken(),)).encode())
    data[at] = byte
    with contextlib.suppress(BadLease):
        assert Lease.decode(bytes(data), "a").host == "a"


def test_every_state_follows_from_what_else_it_says() -> None:
    assert lease().state is State.HELD
    assert lease().left().state is State.LEFT
    gone = lease().taken_by("b", 5)
    assert gone.state is State.TAKING
    assert gone.settled(gone.taken[0]).state is State.EMPTY


def test_a_taken_lease_has_the_line_that_was_lost_and_who_carries_it_on() -> None:
    held = lease(epoch=7, root=4, taken=(taken(1, 2),))
    gone = held.taken_by("c", 9)
    assert (gone.epoch, gone.root) == (8, 0)
    assert gone.taken == (taken(1, 2), taken(4, 7, "c", 9))
    assert gone.passed_on(gone.taken[1], "d", 2).taken == (taken(1, 2), taken(4, 7, "d", 2))
    assert gone.settled(gone.taken[1]).taken == (taken(1, 2),)
    assert gone.settled(taken(9, 9)).taken == gone.taken


def test_a_host_that_comes_back_to_a_taken_lease_begins_a_new_line_and_loses_nothing_of_the_old_one() -> None:
    gone = lease(epoch=7, root=4).taken_by("c", 9)
    back = gone.begun(OTHER, BOOT, HOLD_MS, goes_on=False, keeps_line=False)
    assert (back.epoch, back.root, back.holder, back.state) == (9, 9, OTHER, State.HELD)
    assert back.taken == gone.taken
    assert not back.has_in_line(7)
    assert back.has_in_line(9)


def test_a_host_that_keeps_its_ledger_stays_in_its_line() -> None:
    kept = lease(epoch=7, root=4, has_left=True).begun(HOLDER, BOOT, 500, goes_on=False, keeps_line=True)
    assert (kept.epoch, kept.root, kept.hold_ms, kept.has_left) == (8, 4, 500, False)
    assert kept.has_in_line(5)
    assert not kept.has_in_line(9)


def test_everything_that_a_holder_writes_is_another_content() -> None:
    held = first("a", HOLDER, BOOT, HOLD_MS, host("a"))
    later = [held, held.renewed(held.record), held.left(), held.begun(HOLDER, BOOT, 100, goes_on=True, keeps_line=True)]
    assert len({each.encode() for each in later}) == len(later)
