"""Streams of events: no gap, no duplicate, whatever fails beside them; and followers see all of it in order."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poold.errors import LedgerError
from poold.ledger import Ledger, care, events
from poold.ledger.driver import sqlite3
from poold.ledger.events import Event, Page
from poold.ledger.follow import BATCH, BATCH_BYTES, Followers
from tests.unit.ledger.rows import count, memory

LIMIT_S = 20.0

append = st.tuples(st.sampled_from("abc"), st.none() | st.integers(1, 6))
appends = st.lists(append, max_size=40)


def put(db: sqlite3.Connection, stream: str, number: int, guest_seq: int | None = None) -> int:
    return events.append(db, stream, "output", {"n": number}, at_ms=number, guest_seq=guest_seq)


@given(appends)
def test_a_stream_has_no_gap_and_a_guests_event_is_kept_once(asked: list[tuple[str, int | None]]) -> None:
    with memory() as db:
        model: dict[str, list[int]] = {stream: [] for stream in "abc"}
        first: dict[tuple[str, int], int] = {}
        for number, (stream, guest_seq) in enumerate(asked):
            seq = put(db, stream, number, guest_seq)
            if guest_seq is not None and (stream, guest_seq) in first:
                assert seq == first[stream, guest_seq]
                continue
            model[stream].append(number)
            assert seq == len(model[stream])
            if guest_seq is not None:
                first[stream, guest_seq] = seq
        for stream, numbers in model.items():
            found = events.after(db, stream, 0, 100)
            assert [(event.seq, event.data["n"]) for event in found] == list(enumerate(numbers, 1))
            assert events.after(db, stream, 2, 3) == found[2:5]
            assert events.last_guest_seq(db, stream) == max((g for s, g in first if s == stream), default=0)
        everything = events.everything_after(db, 0, 100)
        assert sorted(n for numbers in model.values() for n in numbers) == [event.data["n"] for event in everything]
        assert events.newest_id(db) == (everything[-1].id if everything else 0)


class Refused(Exception):
    """What a write of a test fails with."""


def work(stream: str, number: int, guest_seq: int | None, failure: str | None) -> Callable[[sqlite3.Connection], int]:
    """An append that goes well, or fails before it, after it, or in SQLite after it."""

    def write(db: sqlite3.Connection) -> int:
        if failure == "before":
            raise Refused
        seq = put(db, stream, number, guest_seq)
        if failure == "after":
            raise Refused
        if failure == "constraint":
            db.execute("INSERT INTO events (stream, seq, at_ms, kind, data) VALUES (?, ?, 0, '', '{}')", (stream, seq))
        if failure == "table":
            db.execute("INSERT INTO nowhere VALUES (1)")
        return seq

    return write


failures = st.none() | st.sampled_from(["before", "after", "constraint", "table"])


@settings(max_examples=25)
@given(st.lists(st.tuples(append, failures), max_size=60))
async def test_failing_writes_in_a_group_leave_no_gap_and_no_trace(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[tuple[str, int | None], str | None]]
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    async with Ledger.open(path) as ledger:
        writes = [
            ledger.submit(work(stream, number, guest_seq, failure))
            for number, ((stream, guest_seq), failure) in enumerate(asked)
        ]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        known: set[tuple[str, int]] = set()
        model: dict[str, list[int]] = {stream: [] for stream in "abc"}
        for number, (((stream, guest_seq), failure), outcome) in enumerate(zip(asked, outcomes, strict=True)):
            if failure is not None:
                expected = {"constraint": sqlite3.IntegrityError, "table": LedgerError}.get(failure, Refused)
                assert isinstance(outcome, expected)
            elif guest_seq is None or (stream, guest_seq) not in known:
                model[stream].append(number)
                assert outcome == len(model[stream])
                if guest_seq is not None:
                    known.add((stream, guest_seq))
        for stream, numbers in model.items():
            found = await ledger.read(partial(events.after, stream=stream, seq=0, limit=100))
            assert [(event.seq, event.data["n"]) for event in found] == list(enumerate(numbers, 1))
        assert await ledger.read(care.check) == []


async def test_a_read_sees_one_state_of_the_ledger(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        await ledger.write(partial(put, stream="a", number=0))
        loop = asyncio.get_running_loop()

        def twice(db: sqlite3.Connection) -> tuple[int, int]:
            first = count(db, "events")
            asyncio.run_coroutine_threadsafe(ledger.write(partial(put, stream="a", number=1)), loop).result(LIMIT_S)
            return first, count(db, "events")

        assert await ledger.read(twice) == (1, 1)
        assert await ledger.read(partial(count, table="events")) == 2


async def test_a_reader_can_change_nothing(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        with pytest.raises(LedgerError, match="readonly"):
            await ledger.read(partial(put, stream="a", number=0))
        assert await ledger.read(partial(count, table="events")) == 0


async def collect(ledger: Ledger, stream: str | None, after: int, number: int) -> list[Event]:
    """The next `number` events."""
    found: list[Event] = []
    async with asyncio.timeout(LIMIT_S), aclosing(ledger.follow(stream, after)) as batches:
        async for batch in batches:
            assert 0 < len(batch) <= BATCH
            found += batch
            if len(found) >= number:
                break
    return found


async def test_a_follower_gets_what_is_there_and_then_what_comes(tmp_path: Path) -> None:
    number = 3 * BATCH + 7
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        await asyncio.gather(*(ledger.write(partial(put, stream="a", number=n)) for n in range(number)))
        following = [asyncio.create_task(collect(ledger, "a", after, 2 * number - after)) for after in (0, 5, number)]
        everything = asyncio.create_task(collect(ledger, None, 0, 4 * number - number))
        for n in range(number):
            ledger.submit(partial(put, stream="a", number=n), durable=False)
            ledger.submit(partial(put, stream="b", number=n), durable=False)
        for after, found in zip((0, 5, number), await asyncio.gather(*following), strict=True):
            assert [event.seq for event in found] == list(range(after + 1, 2 * number + 1))
        assert [event.id for event in await everything] == list(range(1, 3 * number + 1))


async def test_a_follower_gets_few_long_events_at_once_and_all_of_them(tmp_path: Path) -> None:
    long = {"text": "x" * (60 << 10)}
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        await ledger.write(lambda db: [events.append(db, "a", "long", long, at_ms=1) for _ in range(40)])
        sizes: list[int] = []
        async with asyncio.timeout(LIMIT_S), aclosing(ledger.follow("a", 0)) as batches:
            async for batch in batches:
                sizes.append(len(batch))
                if sum(sizes) == 40:
                    break
        assert max(sizes) * len(long["text"]) < 2 * BATCH_BYTES


async def test_a_hundred_followers_share_their_reads(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        await ledger.write(partial(put, stream="a", number=0))
        followers = [asyncio.create_task(collect(ledger, "a", 0, 50)) for _ in range(100)]
        for n in range(1, 50):
            await ledger.write(partial(put, stream="a", number=n), durable=False)
        for found in await asyncio.gather(*followers):
            assert [event.seq for event in found] == list(range(1, 51))


class SlowReads:
    """Reads that look at the ledger when they are asked, and answer when they are let through."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.asked = 0
        self.go_on = asyncio.Event()

    async def read(self, question: Callable[[sqlite3.Connection], Page]) -> Page:
        self.asked += 1
        found = question(self.db)
        await self.go_on.wait()
        return found


async def turns() -> None:
    """Let everyone run who can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_follower_does_not_take_the_answer_to_a_question_from_before_the_commit() -> None:
    with memory() as db:
        reads = SlowReads(db)
        followers = Followers(reads.read)
        early = asyncio.ensure_future(anext(followers.follow("a", 0)))
        await turns()  # it has looked, and there was nothing
        put(db, "a", 1)
        followers.wake({"a"})
        late = asyncio.ensure_future(anext(followers.follow("a", 0)))
        await turns()
        reads.go_on.set()
        async with asyncio.timeout(LIMIT_S):
            assert [event.data["n"] for event in await late] == [1]
            assert [event.data["n"] for event in await early] == [1]


async def test_followers_read_once_for_each_commit_and_not_at_all_between() -> None:
    with memory() as db:
        reads = SlowReads(db)
        reads.go_on.set()
        followers = Followers(reads.read)
        following = [followers.follow("a", 0) for _ in range(100)]
        for number in range(1, 4):
            waiting = [asyncio.ensure_future(anext(batches)) for batches in following]
            await turns()
            followers.wake({"b"})  # nothing of theirs
            await turns()
            assert reads.asked == number
            put(db, "a", number)
            followers.wake({"a"})
            assert {batch[0].data["n"] for batch in await asyncio.gather(*waiting)} == {number}
            assert reads.asked == number + 1
        for batches in following:
            await batches.aclose()


async def test_a_follower_is_woken_only_for_its_stream(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        waiting = asyncio.create_task(collect(ledger, "b", 0, 1))
        for n in range(20):
            await ledger.write(partial(put, stream="a", number=n))
        assert not waiting.done()
        await ledger.write(partial(put, stream="b", number=7))
        assert [event.data["n"] for event in await waiting] == [7]


async def test_a_follower_is_woken_by_a_write_whose_neighbour_failed_half_way(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        waiting = asyncio.create_task(collect(ledger, "a", 0, 2))
        await ledger.write(partial(put, stream="a", number=0))
        writes = [ledger.submit(work("a", n, None, failure)) for n, failure in enumerate(["after", None, "after"], 1)]
        await asyncio.gather(*writes, return_exceptions=True)
        assert [event.data["n"] for event in await waiting] == [0, 2]


async def test_followers_that_leave_at_any_moment_leave_nothing_and_hold_up_nobody(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        staying = asyncio.create_task(collect(ledger, "a", 0, 60))
        for n in range(60):
            leaving = [asyncio.create_task(collect(ledger, "a", 0, 1000)) for _ in range(3)]
            await ledger.write(partial(put, stream="a", number=n), durable=False)
            for turns, task in enumerate(leaving):
                for _ in range(turns * (n % 4)):
                    await asyncio.sleep(0)
                task.cancel()
            assert all(
                isinstance(end, asyncio.CancelledError)
                for end in await asyncio.gather(*leaving, return_exceptions=True)
            )
        assert [event.seq for event in await staying] == list(range(1, 61))
        assert not ledger._followers._waiting  # nobody is left behind to be woken


async def test_who_still_follows_a_closed_ledger_is_told(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        waiting = asyncio.create_task(collect(ledger, "a", 0, 1))
        await ledger.read(partial(count, table="events"))
    with pytest.raises(LedgerError, match="closed"):
        await waiting
