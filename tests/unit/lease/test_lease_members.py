"""Hosts of one cluster on one real folder: who is lost is taken by one other, with everything that it had begun."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lease_hosts import TestHost, Troubled, hosts, until

from poold.errors import HostFault
from poold.lease.keeper import Keeper
from poold.lease.members import Lost, Members, rest_s
from poold.lease.terms import Begin
from poold.lease.written import State
from poold.replica.errors import ReplicaDamaged
from poold.store import Blob
from poold.store.errors import Unreachable


class Carried:
    """The ledger of a host, as far as this is about it: what it has carried on."""

    def __init__(self) -> None:
        self.lost: list[Lost] = []
        self.fails = 0
        self.calls = 0

    async def take_over(self, lost: Lost) -> None:
        self.calls += 1
        if self.fails:
            self.fails -= 1
            raise HostFault("restoring", lost.host)
        if lost not in self.lost:
            self.lost.append(lost)


@contextlib.asynccontextmanager
async def member(host: TestHost, carried: Carried | None = None) -> AsyncIterator[tuple[Keeper, Members]]:
    """A host that takes part during the block."""
    _, keeper = await host.begin()
    members = Members(host.store, keeper, take_over=None if carried is None else carried.take_over)
    async with keeper.holding(), members.watching():
        yield keeper, members


async def test_hosts_see_each_other_and_how_they_are_doing(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "abc") as [a, b, _]:
        async with member(a) as (_, seen_by_a), member(b) as (_, seen_by_b):
            await until(lambda: set(seen_by_a.living()) == set(seen_by_b.living()) == {"a", "b"})
            assert [each["host"] for each in seen_by_a.view()] == ["a", "b"]
            assert all(each["alive"] and each["state"] == "held" for each in seen_by_a.view())


async def test_a_lost_host_is_taken_by_one_other_and_comes_back_empty(store: Troubled, tmp_path: Path) -> None:
    carried = {name: Carried() for name in "bc"}
    with hosts(tmp_path, store, "abc") as [a, b, c]:
        await a.begin()
        a.die()
        async with member(b, carried["b"]) as (_, seen), member(c, carried["c"]):
            await until(lambda: carried["b"].lost or carried["c"].lost)
            await until(lambda: any(each["state"] == "empty" for each in seen.view()))
            assert carried["b"].lost + carried["c"].lost == [Lost("a", 1, 1)]
            begin, keeper = await a.begin()
            assert (begin, keeper.epoch, keeper.lease.state) == (Begin.REJOIN, 3, State.HELD)


async def test_what_is_taken_is_carried_on_at_once_and_once(store: Troubled, tmp_path: Path) -> None:
    carried = Carried()
    with hosts(tmp_path, store, "ab") as [a, b]:
        b.hold_ms = 30_000
        _, left = await a.begin()
        await left.leave()
        _, keeper = await b.begin()
        members = Members(store, keeper, take_over=carried.take_over)
        await members.look()
        assert await members.act()  # there is no other look before it is carried on
        assert carried.lost == [Lost("a", 1, 1)]
        assert (await a.lease()).state is State.EMPTY
        assert await members.act()
        assert carried.calls == 1


async def test_a_lease_that_cannot_be_read_now_costs_nothing_of_what_is_seen_of_others(
    store: Troubled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosts(tmp_path, store, "abc") as made:
        for each in made:
            each.hold_ms = 30_000
        keepers = [(await each.begin())[1] for each in made]
        members, whole = Members(store, keepers[0]), store.get

        async def get(key: str) -> Blob:
            if key == "leases/a":
                raise Unreachable("not now")
            return await whole(key)

        monkeypatch.setattr(store, "get", get)
        with pytest.raises(ExceptionGroup):
            await members.look()
        assert set(members.living()) == {"b", "c"}


async def test_of_many_who_try_for_a_lease_one_gets_it(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "abcdef") as [a, *others]:
        _, keeper = await a.begin()
        await keeper.leave()
        all_members = []
        for each in others:
            each.hold_ms = 30_000
            _, its = await each.begin()
            all_members.append(Members(store, its, take_over=Carried().take_over))
        for members in all_members:
            await members.look()
        seen = [members._seen["a"] for members in all_members]
        won = await asyncio.gather(*(members.take(each) for members, each in zip(all_members, seen, strict=True)))
        assert sorted(won) == [False] * 4 + [True]
        assert (await a.lease()).epoch == 2


async def test_a_taker_that_is_lost_is_taken_over_with_what_it_was_taking(store: Troubled, tmp_path: Path) -> None:
    first, second = Carried(), Carried()
    first.fails = 1 << 30
    with hosts(tmp_path, store, "abc") as [a, b, c]:
        _, keeper = await a.begin()
        await keeper.leave()
        async with member(b, first) as (taker, _):
            while not (await a.lease()).taken:
                await asyncio.sleep(0.05)
        await taker.leave()
        async with member(c, second):
            await until(lambda: len(second.lost) == 2)
            while (await a.lease()).taken or (await b.lease()).taken:
                await asyncio.sleep(0.05)
        assert second.lost == [Lost("b", 1, 1), Lost("a", 1, 1)]
        assert (await a.lease()).state is (await b.lease()).state is State.EMPTY


async def test_what_cannot_be_carried_on_at_once_is_tried_again(store: Troubled, tmp_path: Path) -> None:
    carried = Carried()
    carried.fails = 2
    with hosts(tmp_path, store, "ab") as [a, b]:
        _, keeper = await a.begin()
        await keeper.leave()
        async with member(b, carried):
            await until(lambda: carried.lost)
        assert carried.lost == [Lost("a", 1, 1)]


async def test_a_lease_that_makes_no_sense_is_told_and_left_alone(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "ab") as [a, b]:
        _, keeper = await b.begin()
        await store.create("leases/a", b"not a lease")
        members = Members(store, keeper, take_over=Carried().take_over)
        await members.look()
        await members.act()
        assert [(each["host"], each["state"]) for each in members.view()] == [("a", "unreadable"), ("b", "held")]
        assert (await store.get("leases/a")).data == b"not a lease"
        assert a.name not in members.living()


async def test_who_has_nothing_to_carry_on_with_takes_nothing(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "ab") as [a, b]:
        _, left = await a.begin()
        await left.leave()
        _, keeper = await b.begin()
        members = Members(store, keeper)
        await members.look()
        await members.act()
        assert (await a.lease()).state is State.LEFT


async def test_a_fenced_host_takes_nothing(store: Troubled, tmp_path: Path) -> None:
    carried = Carried()
    with hosts(tmp_path, store, "ab") as [a, b]:
        _, left = await a.begin()
        await left.leave()
        _, keeper = await b.begin()
        members = Members(store, keeper, take_over=carried.take_over)
        await members.look()
        await keeper.leave()
        await members.act()
        assert (await a.lease()).state is State.LEFT
        assert carried.lost == []


class Unforeseen(Carried):
    """Whose takeovers fail in ways that nobody thought of."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)
        self.tries = 0

    async def take_over(self, lost: Lost) -> None:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        await super().take_over(lost)


async def test_a_takeover_that_fails_however_costs_the_taking_host_nothing_and_is_told(
    store: Troubled, tmp_path: Path
) -> None:
    errors = [OSError(28, "No space left on device"), ValueError("nonsense"), KeyError("no such column")]
    carried = Unforeseen(*errors)
    with hosts(tmp_path, store, "ab") as [a, b]:
        _, keeper = await a.begin()
        await keeper.leave()
        async with member(b, carried) as (taker, members):
            await until(lambda: carried.tries == 1)
            await until(lambda: any("No space left" in (each.get("trouble") or "") for each in members.view()))
            assert members.troubles() == 1
            await until(lambda: carried.lost)
            await until(lambda: not members.troubles())
            taker.check()
        assert carried.lost == [Lost("a", 1, 1)]


async def test_a_takeover_that_fails_is_tried_again_with_more_and_more_time_between() -> None:
    assert [rest_s(tries) for tries in (1, 2, 3, 20)] == [2.0, 4.0, 8.0, 300.0]
    assert [rest_s(tries, Unreachable("away")) for tries in (1, 2, 3, 20)] == [2.0, 4.0, 4.0, 4.0]
    assert rest_s(20, ReplicaDamaged("restoring", "a")) == 300.0
