"""Retention: what is young stays, what is old goes, in small steps, and the chain that is left verifies."""

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import NotFound
from contract.states import Event
from poold.ledger import audit, care, events, repeats, replies, reservations, retention, sandboxes, usage
from poold.ledger.driver import sqlite3
from poold.ledger.retention import DAY_MS, Keep, Swept, cut, sweep
from tests.unit.ledger.rows import box, count, memory

NOW_MS = 1000 * DAY_MS
KEEP = Keep(ended_days=30, audit_days=365)


def live(db: sqlite3.Connection, number: int, ended_day: int | None, chatter: int = 3) -> None:
    """A sandbox that ran a day, said something, and ended on `ended_day`, if it did."""
    day = 900 if ended_day is None else ended_day
    sandboxes.add(db, box(number, (day - 1) * DAY_MS))
    for event in (Event.CLAIM, Event.READY):
        sandboxes.move(db, box(number).id, event, now_ms=(day - 1) * DAY_MS)
    for said in range(chatter):
        events.append(db, box(number).id, "output", {}, at_ms=day * DAY_MS, guest_seq=said + 1)
    if ended_day is not None:
        sandboxes.move(db, box(number).id, Event.STOP, now_ms=day * DAY_MS)


def sweep_all(db: sqlite3.Connection, keep: Keep = KEEP, batch: int = 7) -> list[Swept]:
    done = []
    while not (swept := sweep(db, keep, now_ms=NOW_MS, batch=batch)).done:
        assert max(asdict(swept).values()) <= batch
        assert audit.verify(db).ok
        assert care.check(db) == []  # also between two steps
        done.append(swept)
    return done


@given(st.lists(st.none() | st.integers(500, 1000), max_size=12), st.integers(1, 9))
def test_what_ended_long_ago_goes_with_its_events_and_all_else_stays(ends: list[int | None], batch: int) -> None:
    with memory() as db:
        events.append(db, "host", "started", {}, at_ms=0)
        for number, end in enumerate(ends):
            live(db, number, end)
        before = usage.totals(db, now_ms=NOW_MS)
        steps = sweep_all(db, Keep(30, 600), batch)
        for number, end in enumerate(ends):
            if end is not None and end < 970:
                with pytest.raises(NotFound):
                    sandboxes.get(db, box(number).id)
                assert events.after(db, box(number).id, 0, 100) == []
            else:
                assert sandboxes.get(db, box(number).id)
                assert len(events.after(db, box(number).id, 0, 100)) == (6 if end is None else 7)
        assert len(events.after(db, "host", 0, 100)) == 1
        assert count(db, "forgotten") == 0
        assert usage.totals(db, now_ms=NOW_MS) == before  # what was used stays used
        assert sum(swept.sandboxes for swept in steps) == sum(end is not None and end < 970 for end in ends)


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 9))
def test_the_audit_log_is_cut_at_its_old_end_and_goes_on_verifying(days: list[int], batch: int) -> None:
    with memory() as db:
        for day in days:
            audit.add(db, audit.Entry(day * DAY_MS, "test", detail={"day": day}))
        head = audit.head(db)
        sweep_all(db, batch=batch)
        left = [entry.detail["day"] for entry in audit.listed(db, action="test", limit=100)]
        young = next((place for place, day in enumerate(days) if day >= 635), len(days))
        assert left == days[young:]
        assert audit.verify(db, head=head).ok  # the last of them is there, or is the anchor
        audit.add(db, audit.Entry(NOW_MS, "after"))
        assert audit.verify(db).ok
        assert audit.head(db).seq == len(days) + len(audit.listed(db, action="ledger.sweep", limit=1000)) + 1


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 9))), st.integers(0, 9))
def test_a_cut_takes_only_what_is_old_and_stops_at_the_first_that_is_not(
    rows: list[tuple[int, int]], until_ms: int
) -> None:
    last = cut(rows, until_ms)
    gone = rows[: [seq for seq, _ in rows].index(last) + 1] if last is not None else []
    assert all(at_ms < until_ms for _, at_ms in gone)
    if len(gone) < len(rows) and len({seq for seq, _ in rows}) == len(rows):
        assert rows[len(gone)][1] >= until_ms


def test_a_head_that_retention_has_passed_says_nothing_any_more() -> None:
    with memory() as db:
        heads = []
        for day in (1, 2, 999):
            audit.add(db, audit.Entry(day * DAY_MS, "test"))
            heads.append(audit.head(db))
        sweep_all(db)
        assert "retention" in str(audit.verify(db, head=heads[0]).why)
        assert audit.verify(db, head=heads[1]).ok  # it is the anchor
        assert audit.verify(db, head=heads[2]).ok


def test_a_sweep_with_nothing_to_do_writes_nothing() -> None:
    with memory() as db:
        live(db, 1, 990)
        changes = db.total_changes
        assert sweep(db, KEEP, now_ms=NOW_MS).done
        assert db.total_changes == changes


def test_a_sweep_says_in_the_log_what_it_removed() -> None:
    with memory() as db:
        live(db, 1, 900, chatter=20)
        assert len(sweep_all(db, batch=10)) == 4  # the row, then 24 events by tens
        noted = audit.listed(db, action="ledger.sweep", limit=9)
        assert [entry.detail["events"] for entry in noted] == [0, 10, 10, 4]
        assert noted[0].detail["sandboxes"] == 1


def test_runs_go_with_the_audit_log_and_open_ones_stay() -> None:
    with memory() as db:
        live(db, 1, 600)
        live(db, 2, 900)
        live(db, 3, None)
        sweep_all(db)
        assert {row[0] for row in db.execute("SELECT sandbox FROM usage")} == {box(2).id, box(3).id}


def test_an_id_of_an_event_is_never_given_twice() -> None:
    with memory() as db:
        live(db, 1, 900)
        newest = events.newest_id(db)
        sweep_all(db)
        assert events.newest_id(db) == 0
        events.append(db, "host", "started", {}, at_ms=0)
        assert events.newest_id(db) == newest + 1


def test_the_default_is_a_month_and_a_year() -> None:
    assert (Keep().ended_until_ms(NOW_MS), Keep().audit_until_ms(NOW_MS)) == (970 * DAY_MS, 635 * DAY_MS)
    assert retention.BATCH <= 1000  # a sweep stays a matter of milliseconds


def remember(db: sqlite3.Connection, number: int, at_ms: int) -> None:
    """A request with an idempotency key, and its reply."""
    repeats.merge(db, "ada", [repeats.Repeat(f"key-{number}", "asked", box(number).id, at_ms)], now_ms=NOW_MS)
    replies.keep(db, box(number).id, "asked", replies.Reply(201, b"{}"), now_ms=at_ms)


@given(st.lists(st.integers(NOW_MS - 2 * DAY_MS, NOW_MS), max_size=12), st.integers(1, 9))
def test_what_is_kept_for_repeats_goes_after_a_day(times: list[int], batch: int) -> None:
    with memory() as db:
        for number, at_ms in enumerate(times):
            remember(db, number, at_ms)
        sweep_all(db, batch=batch)
        young = {number for number, at_ms in enumerate(times) if at_ms > NOW_MS - DAY_MS}
        assert {one.key for one in repeats.newest(db, "ada", 100, now_ms=NOW_MS)} == {f"key-{n}" for n in young}
        found = {n for n in range(len(times)) if replies.get(db, box(n).id, "asked", now_ms=NOW_MS)}
        assert found == young
        assert (count(db, "repeats"), count(db, "replies")) == (len(young), len(young))


@given(st.lists(st.tuples(st.integers(900, 1000), st.booleans(), st.integers(0, 5)), max_size=5), st.integers(1, 9))
def test_a_closed_book_goes_after_a_month_and_an_open_one_stays(books: list[tuple[int, bool, int]], batch: int) -> None:
    with memory() as db:
        for number, (day, is_open, rows) in enumerate(books):
            brought = [reservations.Reservation(box(row).id, 1, 256, 1024) for row in range(rows)]
            reservations.open_book(db, f"owner-{number}", brought, [], now_ms=day * DAY_MS)
            if not is_open:
                reservations.close_book(db, f"owner-{number}", now_ms=day * DAY_MS)
        sweep_all(db, batch=batch)
        kept = [rows for day, is_open, rows in books if is_open or day >= 970]
        assert count(db, "books") == len(kept)
        assert count(db, "reservations") == sum(kept)
