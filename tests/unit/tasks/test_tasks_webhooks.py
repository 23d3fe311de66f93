"""Deliveries are signed, tried for a day, and no owner's are at the cost of another's."""

import asyncio
import hashlib
import hmac
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import BadField
from contract.network import NetRule
from poold.errors import LedgerError
from poold.tasks import webhooks
from poold.tasks.posting import Unreached, post
from poold.tasks.urls import Url
from poold.tasks.webhooks import (
    DELAYS_S,
    MAX_TRIES,
    MOST,
    MOST_PER_OWNER,
    Deliveries,
    Delivery,
    choose,
    headers_of,
    next_try_ms,
    signature,
    verdict,
    webhook_url,
)
from tests.unit.tasks.tasks_receiver import receiving

LIMIT_S = 60.0
NOW_MS = 1_700_000_000_000
SECRET = "hunter2"


def delivery(name: str, owner: str = "ann", **told: object) -> Delivery:
    usual = {"url": "http://hooks.example.com/", "body": b"{}", "secret": SECRET}
    return Delivery(name, owner, **{**usual, **told})  # type: ignore[arg-type]


class Book:
    """Deliveries that are kept in memory, and how each ended."""

    def __init__(self, *waiting: Delivery) -> None:
        self.waiting = {each.id: each for each in waiting}
        self.ended: dict[str, object] = {}
        self.troubles = 0
        self.changed = asyncio.Event()

    async def due(self, now_ms: int) -> Sequence[Delivery]:
        assert now_ms == NOW_MS
        self._trouble()
        return list(self.waiting.values())

    async def done(self, delivery_id: str) -> None:
        self._end(delivery_id, "done")

    async def failed(self, delivery_id: str, why: str, next_ms: int | None) -> None:
        self._end(delivery_id, (why, next_ms))

    def _end(self, delivery_id: str, how: object) -> None:
        self._trouble()
        assert delivery_id not in self.ended
        del self.waiting[delivery_id]
        self.ended[delivery_id] = how
        self.changed.set()

    def _trouble(self) -> None:
        if self.troubles:
            self.troubles -= 1
            raise LedgerError("writing", "the ledger")

    async def all_ended(self, count: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while len(self.ended) < count:
                self.changed.clear()
                await self.changed.wait()


Answer = Callable[[Url, Mapping[str, str], bytes], Awaitable[int]]


@asynccontextmanager
async def delivering(book: Book, answer: Answer) -> AsyncIterator[Deliveries]:
    deliveries = Deliveries(book, answer, clock_ms=lambda: NOW_MS, random=lambda: 0.0)
    task = asyncio.create_task(deliveries.run())
    try:
        yield deliveries
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def takes(_url: Url, _headers: Mapping[str, str], _body: bytes) -> int:
    return 200


def test_a_signature_is_what_a_receiver_computes() -> None:
    body = b'{"a": 1}'
    expected = hmac.new(SECRET.encode(), b"1700000000." + body, hashlib.sha256).hexdigest()
    assert signature(SECRET, body, 1_700_000_000) == f"t=1700000000,v1={expected}"
    headers = headers_of(delivery("d1", body=body), 1_700_000_000)
    assert headers["Warren-Signature"] == f"t=1700000000,v1={expected}"
    assert (headers["Warren-Delivery"], headers["Content-Type"]) == ("d1", "application/json")
    assert "Warren-Signature" not in headers_of(delivery("d1", secret=None), 1)


def test_no_repr_shows_the_secret_or_the_body() -> None:
    assert SECRET not in repr(delivery("d1"))
    assert "body" not in repr(delivery("d1"))


async def test_a_real_receiver_can_verify_what_it_gets() -> None:
    async with receiving() as receiver:
        book = Book(delivery("d1", body=b'{"state": "completed"}'))
        async with delivering(book, partial(post, receiver.ways())):
            await book.all_ended(1)
        [(_, headers, body)] = receiver.requests
        at, signed = (part.partition("=")[2] for part in headers["Warren-Signature"].split(","))
        assert hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest() == signed
        assert book.ended == {"d1": "done"}


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_takes_it(status: int) -> None:
    assert verdict(status) is None


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 410, 429, 500, 503, 599])
async def test_everything_else_is_tried_again_but_what_is_gone_is_given_up(status: int) -> None:
    async def refuses(_url: Url, _headers: Mapping[str, str], _body: bytes) -> int:
        return status

    book = Book(delivery("d1"))
    async with delivering(book, refuses):
        await book.all_ended(1)
    why, next_ms = book.ended["d1"]  # type: ignore[misc]
    assert str(status) in why
    assert next_ms == (None if status == 410 else NOW_MS + 5000)
    assert ("redirects" in why) == (300 <= status < 400)


async def test_who_cannot_be_reached_is_tried_again_until_the_tries_are_used() -> None:
    async def unreached(_url: Url, _headers: Mapping[str, str], _body: bytes) -> int:
        raise Unreached("nobody is there")

    book = Book(delivery("d1"), delivery("d2", tries=MAX_TRIES - 1), delivery("d3", url="nonsense"))
    async with delivering(book, unreached):
        await book.all_ended(3)
    assert book.ended["d1"] == ("nobody is there", NOW_MS + 5000)
    assert book.ended["d2"] == ("nobody is there", None)
    assert "webhook.url: must be" in str(book.ended["d3"])


def test_tries_are_spread_over_about_a_day() -> None:
    at, times = 0, []
    for tries in range(1, MAX_TRIES):
        found = next_try_ms(tries, at, 0.0)
        assert found is not None
        times.append((found - at) // 1000)
        at = found
    assert (MAX_TRIES, tuple(times)) == (8, DELAYS_S)
    assert times == sorted(times)
    assert 20 * 3600 < at // 1000 < 28 * 3600
    assert next_try_ms(MAX_TRIES, 0, 0.0) is None


@given(st.integers(1, MAX_TRIES + 3), st.integers(0, 1 << 50), st.floats(0, 1))
def test_a_next_try_is_later_and_not_much_later_than_planned(tries: int, now_ms: int, chance: float) -> None:
    found = next_try_ms(tries, now_ms, chance)
    assert (found is None) == (tries >= MAX_TRIES)
    if found is not None:
        delay_ms = DELAYS_S[tries - 1] * 1000
        assert now_ms + delay_ms <= found <= now_ms + delay_ms * 1.1


@given(st.lists(st.tuples(st.sampled_from("abcdefghijklm"), st.booleans()), max_size=80))
def test_limits_are_kept_and_nobody_waits_for_the_crowd_of_another(rows: list[tuple[str, bool]]) -> None:
    due = [delivery(f"d{i}", owner) for i, (owner, _) in enumerate(rows)]
    under_way: dict[str, str] = {}
    for each, (owner, is_under_way) in zip(due, rows, strict=True):
        if is_under_way and len(under_way) < MOST and Counter(under_way.values())[owner] < MOST_PER_OWNER:
            under_way[each.id] = owner
    chosen = choose(due, under_way)
    busy = Counter(under_way.values()) + Counter(each.owner for each in chosen)
    assert len({each.id for each in chosen} - set(under_way)) == len(chosen)
    assert all(count <= MOST_PER_OWNER for count in busy.values())
    assert busy.total() <= MOST
    left = {each.owner for each in due if each.id not in under_way and each not in chosen}
    for owner in left:  # who has to wait has as many as others, or all that one may have; or there is no room
        assert busy[owner] == MOST_PER_OWNER or busy.total() == MOST
        began = [busy[each.owner] for each in chosen]
        assert not began or busy[owner] >= max(began) - 1
    own = {owner: [each.id for each in chosen if each.owner == owner] for owner in busy}
    assert all(ids == sorted(ids, key=lambda name: int(name[1:])) for ids in own.values())


async def test_no_more_than_allowed_are_under_way_and_all_are_done() -> None:
    under_way: Counter[str] = Counter()
    most: Counter[str] = Counter()
    gate = asyncio.Semaphore(0)

    async def slow(_url: Url, headers: Mapping[str, str], _body: bytes) -> int:
        owner = headers["Warren-Delivery"].split("-")[0]
        under_way[owner] += 1
        most[owner] = max(most[owner], under_way[owner])
        most["all"] = max(most["all"], under_way.total())
        await gate.acquire()
        under_way[owner] -= 1
        return 200

    book = Book(*(delivery(f"o{i % 10}-{i}", f"o{i % 10}") for i in range(200)))
    async with delivering(book, slow):
        async with asyncio.timeout(LIMIT_S):
            while under_way.total() < MOST:
                await asyncio.sleep(0)
        for _ in range(200):
            gate.release()
        await book.all_ended(200)
    assert most.pop("all") == MOST
    assert max(most.values()) <= MOST_PER_OWNER
    assert set(book.ended.values()) == {"done"}


async def test_one_owner_whose_receiver_hangs_holds_up_nobody() -> None:
    async def hangs_for_ann(_url: Url, headers: Mapping[str, str], _body: bytes) -> int:
        if headers["Warren-Delivery"].startswith("ann"):
            await asyncio.Event().wait()
        return 200

    book = Book(*(delivery(f"ann-{i}", "ann") for i in range(100)), *(delivery(f"bob-{i}", "bob") for i in range(20)))
    async with delivering(book, hangs_for_ann):
        await book.all_ended(20)
    assert {name[:3] for name in book.ended} == {"bob"}


async def test_what_comes_later_is_begun_when_the_bell_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "POLL_S", 10_000.0)
    book = Book()
    async with delivering(book, takes) as deliveries:
        await asyncio.sleep(0)
        book.waiting["d1"] = delivery("d1")
        deliveries.ring()
        await book.all_ended(1)


async def test_a_ledger_that_fails_for_a_while_costs_a_repetition_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhooks, "POLL_S", 0.01)
    monkeypatch.setattr(webhooks, "TROUBLE_S", 0.01)
    told: list[str] = []

    async def counts(_url: Url, headers: Mapping[str, str], _body: bytes) -> int:
        if not told:
            book.troubles = 1  # it cannot be written down that this was delivered
        told.append(headers["Warren-Delivery"])
        return 200

    book = Book(delivery("d1"))
    book.troubles = 2  # nor can it be asked at first
    async with delivering(book, counts):
        await book.all_ended(1)
    assert (told, book.ended) == (["d1", "d1"], {"d1": "done"})
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    assert SECRET not in caplog.text


async def test_what_is_under_way_at_the_end_is_still_due() -> None:
    begun = asyncio.Event()

    async def hangs(_url: Url, _headers: Mapping[str, str], _body: bytes) -> int:
        begun.set()
        await asyncio.Event().wait()
        return 200

    book = Book(delivery("d1"))
    async with delivering(book, hangs):
        await begun.wait()
    assert (list(book.waiting), book.ended) == (["d1"], {})


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://Hooks.example.com/a?b=c", "https://hooks.example.com/a?b=c"),
        ("http://hooks.example.com:8080", "http://hooks.example.com:8080"),
        ("http://93.184.216.34/", "http://93.184.216.34/"),
        ("http://10.0.0.1:9000/", "http://10.0.0.1:9000/"),
    ],
)
def test_where_a_caller_wants_to_be_told_is_checked_and_kept(url: str, kept: str) -> None:
    assert webhook_url(url, (NetRule("10.0.0.0/8", 9000),)) == kept


@pytest.mark.parametrize(
    "url",
    [
        *("https://ann:hunter2@hooks.example.com/", "https://hunter2@hooks.example.com/", "ftp://a.b/", "nonsense"),
        *("http://127.0.0.1/", "http://10.0.0.1/", "http://[::1]/", "http://169.254.169.254/", "http://a.b/#c"),
        *("http://a.b/\r\nX: y", "http://a b/", "http://localhost:9000/"),
    ],
)
def test_where_nobody_may_be_told_is_refused_without_a_password(url: str) -> None:
    with pytest.raises(BadField) as caught:
        webhook_url(url)
    assert caught.value.details["field"] == "webhook.url"
    assert "hunter2" not in str(caught.value.body())
