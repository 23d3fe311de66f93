"""Books: never over the limit, nothing lost when one moves, and the same key gets the same id for a day."""

from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contract.errors import KeyReused, NoBook, PoolExhausted
from contract.keys import Pools
from poold.ledger import audit, care, repeats, reservations
from poold.ledger.driver import sqlite3
from poold.ledger.repeats import KEPT_MS, Repeat
from poold.ledger.reservations import Key, Reservation, Reserved
from tests.unit.ledger.rows import memory

ADA = "ada"
POOLS = Pools(vcpus=8, memory_mb=4096, disk_mb=10_000)


def room(number: int, vcpus: int = 1, memory_mb: int = 256, disk_mb: int = 1024) -> Reservation:
    return Reservation(f"sb-{number:016}", vcpus, memory_mb, disk_mb)


def open_empty(db: sqlite3.Connection, owner: str = ADA) -> None:
    assert reservations.open_book(db, owner, [], [], now_ms=1)


def ids(rows: list[Reservation]) -> set[str]:
    return {row.id for row in rows}


numbers = st.integers(0, 12)
keys = st.sampled_from(["k1", "k2", "k3"])
bodies = st.sampled_from(["b1", "b2"])


class Books(RuleBasedStateMachine):
    """Two hosts and the gateways of one owner, whose book moves between them; and a plain account of it."""

    def __init__(self) -> None:
        super().__init__()
        self._files = ExitStack()
        self.hosts = [self._files.enter_context(memory()) for _ in range(2)]
        self.now_ms = 1000
        self.rows: dict[str, Reservation] = {}
        self.known: dict[str, tuple[str, str, int]] = {}  # key: asked, id, when
        self.at = 0  # the host with the open book

    @initialize()
    def first(self) -> None:
        open_empty(self.hosts[0])

    @rule(number=numbers, vcpus=st.integers(1, 5), memory_mb=st.integers(1, 3000), disk_mb=st.integers(1, 6000))
    def reserve(self, number: int, vcpus: int, memory_mb: int, disk_mb: int) -> None:
        self._reserve(room(number, vcpus, memory_mb, disk_mb), None)

    @rule(number=numbers, key=keys, asked=bodies)
    def reserve_with_a_key(self, number: int, key: str, asked: str) -> None:
        self._reserve(room(number), Key(key, asked))

    def _reserve(self, wanted: Reservation, key: Key | None) -> None:
        try:
            got = reservations.reserve(self.hosts[self.at], ADA, wanted, POOLS, now_ms=self.now_ms, key=key)
        except KeyReused:
            assert key is not None
            assert self._known(key.key)[0] not in (None, key.asked)
            return
        except PoolExhausted as error:
            assert wanted.id not in self.rows
            assert not self._fits(wanted)
            self._check_told(error)
            return
        known = (None, None) if key is None else self._known(key.key)
        if got.repeated:
            assert key is not None
            assert known == (key.asked, got.id)
            return
        assert got.id == wanted.id
        assert known[1] in (None, wanted.id)
        assert wanted.id in self.rows or self._fits(wanted)
        self.rows.setdefault(wanted.id, wanted)
        if key is not None:
            self.known[key.key] = key.asked, wanted.id, self.now_ms

    def _check_told(self, error: PoolExhausted) -> None:
        assert error.details["used"] == self._used()
        assert error.details["allowed"] == vars(POOLS)

    @rule(numbers=st.lists(numbers, max_size=4), forget=st.booleans())
    def release(self, numbers: list[int], forget: bool) -> None:
        wanted = {room(number).id for number in numbers}
        released = reservations.release(self.hosts[self.at], ADA, sorted(wanted), forget=forget)
        assert released == len(wanted & self.rows.keys())
        self.rows = {name: row for name, row in self.rows.items() if name not in wanted}
        if forget:
            self.known = {key: one for key, one in self.known.items() if one[1] not in wanted}

    @rule(dies=st.booleans())
    def move(self, dies: bool) -> None:
        """To the other host; perhaps by a gateway that dies in the middle of it, and then by another one."""
        old, new = self.hosts[self.at], self.hosts[1 - self.at]
        for _ in range(1 + dies):
            rows, remembered = reservations.close_book(old, ADA, now_ms=self.now_ms)
        for host in (old, new):
            with pytest.raises(NoBook):
                reservations.reserve(host, ADA, room(1), POOLS, now_ms=self.now_ms)
        # What was released elsewhere meanwhile comes back: a gateway finds out which sandboxes are over.
        stale = ids(reservations.close_book(new, ADA, now_ms=self.now_ms)[0]) - ids(rows)
        for _ in range(2):  # the second changes nothing
            reservations.open_book(new, ADA, rows, remembered, now_ms=self.now_ms)
        reservations.release(new, ADA, stale, forget=True)
        for key, one in self.known.items():
            assert key in {row.key for row in remembered} or one[2] <= self.now_ms - KEPT_MS
        self._check_brought(new)
        self.at = 1 - self.at

    def _check_brought(self, new: sqlite3.Connection) -> None:
        kept = {row.key: (row.asked, row.id, row.at_ms) for row in repeats.newest(new, ADA, 100, now_ms=self.now_ms)}
        # A key that was forgotten on one host may still be known to the other's closed book.
        self.known = {key: kept[key] for key in kept}

    @rule(hours=st.integers(1, 30))
    def time_passes(self, hours: int) -> None:
        self.now_ms += hours * 3_600_000

    @invariant()
    def it_is_never_over_the_limit_and_knows_what_is_reserved(self) -> None:
        rows = reservations.rows(self.hosts[self.at], ADA) if self._is_open() else []
        if self._is_open():
            assert ids(rows) == self.rows.keys()
            assert vars(reservations.used(self.hosts[self.at], ADA)) == self._used()
        assert all(self._used()[name] <= allowed for name, allowed in vars(POOLS).items())

    def _is_open(self) -> bool:
        return self.hosts[self.at].execute("SELECT count(*) FROM books WHERE state = 'open'").fetchone()[0] == 1

    def _known(self, key: str) -> tuple[str | None, str | None]:
        asked, sandbox, at_ms = self.known.get(key, (None, None, 0))
        return (asked, sandbox) if at_ms > self.now_ms - KEPT_MS else (None, None)

    def _used(self) -> dict[str, int]:
        return {name: sum(getattr(row, name) for row in self.rows.values()) for name in vars(POOLS)}

    def _fits(self, wanted: Reservation) -> bool:
        return all(self._used()[name] + getattr(wanted, name) <= allowed for name, allowed in vars(POOLS).items())

    def teardown(self) -> None:
        for host in self.hosts:
            assert care.check(host) == []
        self._files.close()


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_refusal_says_what_is_used_allowed_and_asked_for() -> None:
    with memory() as db:
        open_empty(db)
        reservations.reserve(db, ADA, room(1, vcpus=6), POOLS, now_ms=1)
        changes = db.total_changes
        with pytest.raises(PoolExhausted) as refused:
            reservations.reserve(db, ADA, room(2, vcpus=3), POOLS, now_ms=1)
        assert db.total_changes == changes
        told = refused.value.body()["error"]
        assert refused.value.status == 429
        assert told["code"] == "pool_exhausted"
        assert told["used"] == {"vcpus": 6, "memory_mb": 256, "disk_mb": 1024}
        assert told["allowed"] == {"vcpus": 8, "memory_mb": 4096, "disk_mb": 10_000}
        assert told["asked"] == {"vcpus": 3, "memory_mb": 256, "disk_mb": 1024}
        assert "6 of 8 vcpus" in told["message"]
        assert "memory" not in told["message"]  # there is enough of it


def test_what_is_released_can_be_reserved_again() -> None:
    with memory() as db:
        open_empty(db)
        reservations.reserve(db, ADA, room(1, vcpus=8), POOLS, now_ms=1)
        assert reservations.release(db, ADA, [room(1).id, "sb-unknown"]) == 1
        reservations.reserve(db, ADA, room(2, vcpus=8), POOLS, now_ms=1)
        assert ids(reservations.rows(db, ADA)) == {room(2).id}


def test_an_id_that_is_reserved_is_a_success_whatever_the_limit_is_now() -> None:
    with memory() as db:
        open_empty(db)
        for pools in (POOLS, POOLS, Pools(0, 0, 0)):
            assert reservations.reserve(db, ADA, room(1), pools, now_ms=1) == Reserved(room(1).id, False)
        assert reservations.used(db, ADA).vcpus == 1


def test_owners_share_nothing() -> None:
    with memory() as db:
        open_empty(db)
        open_empty(db, "bob")
        reservations.reserve(db, ADA, room(1, vcpus=8), POOLS, now_ms=1, key=Key("k", "a"))
        reservations.reserve(db, "bob", room(2, vcpus=8), POOLS, now_ms=1, key=Key("k", "b"))
        assert reservations.release(db, "bob", [room(1).id]) == 0
        reservations.close_book(db, "bob", now_ms=1)
        assert ids(reservations.rows(db, ADA)) == {room(1).id}


def test_a_key_gives_the_same_id_also_when_its_sandbox_is_over() -> None:
    with memory() as db:
        open_empty(db)
        key = Key("k", "body")
        reservations.reserve(db, ADA, room(1), POOLS, now_ms=1, key=key)
        reservations.release(db, ADA, [room(1).id])
        again = reservations.reserve(db, ADA, room(2), POOLS, now_ms=2, key=key)
        assert again == Reserved(room(1).id, True)
        assert reservations.rows(db, ADA) == []  # nothing was reserved for a second time
        with pytest.raises(KeyReused):
            reservations.reserve(db, ADA, room(2), POOLS, now_ms=2, key=Key("k", "another"))


def test_a_key_whose_sandbox_never_came_to_be_can_get_another_id() -> None:
    with memory() as db:
        open_empty(db)
        key = Key("k", "body")
        reservations.reserve(db, ADA, room(1), POOLS, now_ms=1, key=key)
        reservations.release(db, ADA, [room(1).id], forget=True)
        assert reservations.reserve(db, ADA, room(2), POOLS, now_ms=1, key=key) == Reserved(room(2).id, False)
        # The gateway that heard of the refusal last takes nothing from the one that went on.
        reservations.release(db, ADA, [room(1).id], forget=True)
        assert reservations.reserve(db, ADA, room(3), POOLS, now_ms=1, key=key) == Reserved(room(2).id, True)


def test_a_retry_of_a_lost_reply_gets_its_own_id_and_its_room() -> None:
    with memory() as db:
        open_empty(db)
        key = Key("k", "body")
        for _ in range(2):
            assert reservations.reserve(db, ADA, room(1), POOLS, now_ms=1, key=key) == Reserved(room(1).id, False)
        reservations.release(db, ADA, [room(1).id])
        reservations.reserve(db, ADA, room(1), POOLS, now_ms=1, key=key)
        assert ids(reservations.rows(db, ADA)) == {room(1).id}


def test_a_key_is_as_new_after_a_day() -> None:
    with memory() as db:
        open_empty(db)
        reservations.reserve(db, ADA, room(1), POOLS, now_ms=1, key=Key("k", "a"))
        day = repeats.KEPT_MS
        assert reservations.reserve(db, ADA, room(2), POOLS, now_ms=day, key=Key("k", "a")).repeated
        assert not reservations.reserve(db, ADA, room(2), POOLS, now_ms=day + 1, key=Key("k", "b")).repeated


def test_without_a_book_nothing_is_reserved_and_releasing_is_fine() -> None:
    with memory() as db:
        with pytest.raises(NoBook) as refused:
            reservations.reserve(db, ADA, room(1), POOLS, now_ms=1)
        assert (refused.value.status, refused.value.code) == (404, "no_book")
        with pytest.raises(NoBook):
            reservations.rows(db, ADA)
        assert reservations.release(db, ADA, [room(1).id]) == 0
        assert reservations.close_book(db, ADA, now_ms=1) == ([], [])
        assert audit.listed(db, limit=9) == []


def test_opening_and_closing_are_written_down_once() -> None:
    with memory() as db:
        for _ in range(2):
            reservations.open_book(db, ADA, [room(1)], [Repeat("k", "a", room(1).id, 1)], now_ms=5, request="rq-1")
        for _ in range(2):
            reservations.close_book(db, ADA, now_ms=6, request="rq-2")
        noted = [(row.action, row.owner, row.request, row.detail) for row in audit.listed(db, limit=9)]
        detail = {"rows": 1, "repeats": 1}
        assert noted == [("book.open", ADA, "rq-1", detail), ("book.close", ADA, "rq-2", detail)]


def test_a_book_that_is_opened_again_where_it_was_has_what_it_had() -> None:
    """A gateway closed it and died; nobody has its rows but the closed book itself."""
    with memory() as db:
        open_empty(db)
        reservations.reserve(db, ADA, room(1), POOLS, now_ms=1, key=Key("k", "a"))
        reservations.close_book(db, ADA, now_ms=2)
        assert ids(reservations.close_book(db, ADA, now_ms=2)[0]) == {room(1).id}
        reservations.open_book(db, ADA, [room(2)], [], now_ms=3)
        assert ids(reservations.rows(db, ADA)) == {room(1).id, room(2).id}
        reservations.close_book(db, ADA, now_ms=2)
        reservations.open_book(db, ADA, [room(1, vcpus=5)], [], now_ms=3)  # what is brought is newer
        assert [(row.id, row.vcpus) for row in reservations.rows(db, ADA)] == [(room(1).id, 5), (room(2).id, 1)]
        assert reservations.reserve(db, ADA, room(3), POOLS, now_ms=3, key=Key("k", "a")).id == room(1).id


@given(st.integers(-10, 10))
def test_of_two_memories_of_a_key_the_newer_counts_and_none_is_from_the_future(later_ms: int) -> None:
    with memory() as db:
        open_empty(db)
        reservations.reserve(db, ADA, room(1), POOLS, now_ms=100, key=Key("k", "a"))
        reservations.close_book(db, ADA, now_ms=105)
        reservations.open_book(db, ADA, [], [Repeat("k", "a", room(2).id, 100 + later_ms)], now_ms=105)
        (kept,) = repeats.newest(db, ADA, 9, now_ms=105)
        assert kept.id == (room(2).id if later_ms > 0 else room(1).id)
        assert kept.at_ms <= 105


def test_a_book_that_is_full_of_rows_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "MAX_ROWS", 2)
    with memory() as db:
        open_empty(db)
        for number in range(2):
            reservations.reserve(db, ADA, room(number), POOLS, now_ms=1)
        with pytest.raises(PoolExhausted, match="2 sandboxes"):
            reservations.reserve(db, ADA, room(3), POOLS, now_ms=1)
