"""Holding a lease in a real folder, with real processes as machines and real wardens."""

import asyncio
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from lease_hosts import HOLD_MS, Troubled, hosts, is_dead, lost_in, until

from poold.errors import ConfigError, Fenced
from poold.lease.keeper import Keeper
from poold.lease.starting import acquire
from poold.lease.terms import MS, Begin
from poold.lease.written import State, Taken


async def test_a_new_host_joins_and_renews(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        begin, keeper = await a.begin()
        assert (begin, keeper.epoch) == (Begin.JOIN, 1)
        async with keeper.holding():
            await until(lambda: keeper.counted.renewals >= 8)
            keeper.check()
        found = await a.lease()
        assert (found.epoch, found.state) == (1, State.HELD)
        assert found.beat > 8


async def test_a_poold_that_is_started_again_in_time_goes_on_and_its_machines_run(
    store: Troubled, tmp_path: Path
) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        a.hold_ms = 30_000
        _, keeper = await a.begin()
        machine = a.machine()
        try:
            begin, again = await a.begin()
            assert (begin, again.epoch) == (Begin.GO_ON, keeper.epoch)
            assert not is_dead(machine)
        finally:
            machine.kill()
            machine.wait()


async def test_a_poold_that_is_started_again_too_late_keeps_its_ledger_and_its_machines_are_dead(
    store: Troubled, tmp_path: Path
) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        _, keeper = await a.begin()
        a.ledger.write_bytes(b"mine")
        machine = a.machine()
        a.die()
        await until(lambda: not keeper.is_held)
        begin, again = await a.begin()
        await until(lambda: is_dead(machine))
        assert (begin, again.epoch, again.lease.root) == (Begin.KEEP, 2, 1)
        assert a.ledger.read_bytes() == b"mine"


async def test_a_host_that_cannot_renew_takes_no_work_and_kills_its_machines(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        _, keeper = await a.begin()
        machine = a.machine()

        async def go_away() -> None:
            store.is_away = True

        with pytest.raises(ExceptionGroup) as caught:
            await lost_in(keeper, go_away)
        assert caught.group_contains(Fenced)
        await until(lambda: is_dead(machine))
        with pytest.raises(Fenced, match="could not be renewed in time"):
            keeper.check()
        told = orjson.loads(a.guard.killed.read_bytes())
        assert (told["epoch"], told["machines"]) == (1, [machine.pid])
        assert keeper.counted.failures > 0


async def test_work_is_refused_by_the_clock_before_anybody_has_noticed(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        ground = a.ground()
        _, held = await acquire(ground)
        assert Keeper(ground, held).is_held
        over_ns = held.sent_ns + a.hold_ms * MS
        late = Keeper(replace(ground, now_ns=lambda: over_ns), held)
        assert not late.is_held
        with pytest.raises(Fenced):
            late.check()


async def test_a_renewal_whose_reply_is_lost_is_found_and_the_epoch_goes_on(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        a.hold_ms = 5_000
        _, keeper = await a.begin()
        async with keeper.holding():
            for _ in range(3):
                before = keeper.counted.failures
                store.loses_replies = True
                await until(lambda failed=before: keeper.counted.failures > failed)
                store.loses_replies = False
                renewed = keeper.counted.renewals
                await until(lambda done=renewed: keeper.counted.renewals > done)
            keeper.check()
        assert (await a.lease()).epoch == 1


async def test_a_renewal_that_was_applied_counts_from_when_it_was_sent_though_no_reply_ever_comes(
    store: Troubled, tmp_path: Path
) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        a.hold_ms = 3_000
        _, keeper = await a.begin()
        store.loses_replies = True
        async with keeper.holding():
            began = keeper._held.sent_ns
            await until(lambda: keeper._held.sent_ns > began + 2 * a.hold_ms * MS)
            keeper.check()
            assert keeper._held.sent_ns <= keeper._ground.now_ns()
            assert keeper._held.sent_ns in (*keeper._sent_ns.values(), began)
            assert keeper.counted.failures > 0
        assert (await a.lease()).epoch == 1


async def test_what_another_wrote_into_the_lease_gives_its_holder_no_time(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        a.hold_ms = 30_000
        _, keeper = await a.begin()
        blob, sent_ns = await store.get("leases/a"), keeper._held.sent_ns
        noted = replace(keeper.lease, taken=(Taken(1, 1, "b", 1),))
        await store.replace("leases/a", noted.encode(), blob.entry.tag)
        await keeper._renew()
        assert (keeper.lease.taken, keeper._held.sent_ns) == (noted.taken, sent_ns)
        await keeper._renew()
        assert keeper._held.sent_ns > sent_ns


async def test_a_host_whose_lease_was_taken_stops_at_once(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        a.hold_ms = 30_000
        _, keeper = await a.begin()
        machine = a.machine()
        blob = await store.get("leases/a")
        taken = keeper.lease.taken_by("b", 1)
        with pytest.raises(ExceptionGroup) as caught:
            await lost_in(keeper, lambda: store.replace("leases/a", taken.encode(), blob.entry.tag))
        assert caught.group_contains(Fenced, match="taken")
        await until(lambda: is_dead(machine))


async def test_a_lease_that_makes_no_sense_is_lost(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        _, keeper = await a.begin()
        blob = await store.get("leases/a")
        with pytest.raises(ExceptionGroup) as caught:
            await lost_in(keeper, lambda: store.replace("leases/a", b"{}", blob.entry.tag))
        assert caught.group_contains(Fenced)
        with pytest.raises(ConfigError, match="makes no sense"):
            await a.begin()


async def test_a_returning_host_finds_its_lease_taken_sets_its_ledger_aside_and_rejoins_empty(
    store: Troubled, tmp_path: Path
) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        a.hold_ms = 30_000
        _, keeper = await a.begin()
        machine = a.machine()
        for name in ("ledger.db", "ledger.db-wal", ".ledger.db-litestream"):
            (a.folder / name).write_bytes(b"old")
        blob = await store.get("leases/a")
        await store.replace("leases/a", keeper.lease.taken_by("b", 1).encode(), blob.entry.tag)
        begin, again = await a.begin()
        await until(lambda: is_dead(machine))
        assert (begin, again.epoch, again.lease.root) == (Begin.REJOIN, 3, 3)
        assert [each.by for each in again.lease.taken] == ["b"]
        assert not list(a.folder.glob("*ledger*"))
        aside = a.folder / "lost" / "a-1"
        assert {path.name for path in aside.iterdir()} == {"ledger.db", "ledger.db-wal", ".ledger.db-litestream"}


async def test_two_hosts_of_one_name_are_told_and_neither_is_harmed(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "a") as [a], hosts(tmp_path / "elsewhere", store, "a") as [other]:
        (tmp_path / "elsewhere").mkdir()
        _, keeper = await a.begin()
        async with keeper.holding():
            with pytest.raises(ConfigError, match="POOLD_NAME=a is held by a poold at"):
                await other.begin()
            keeper.check()


async def test_a_host_whose_disk_was_lost_waits_for_its_lease_and_is_to_restore_its_ledger(
    store: Troubled, tmp_path: Path
) -> None:
    with hosts(tmp_path, store, "a") as [a], hosts(tmp_path / "new", store, "a") as [new]:
        (tmp_path / "new").mkdir()
        await a.begin()
        a.die()
        begin, keeper = await new.begin()
        assert (begin, keeper.epoch, keeper.lease.root) == (Begin.RESTORE, 2, 1)


async def test_a_store_that_is_away_at_the_start_is_waited_for(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        store.is_away = True
        beginning = asyncio.ensure_future(a.begin())
        await until(a.guard.folder.exists)
        store.is_away = False
        assert (await beginning)[0] is Begin.JOIN


async def test_a_start_whose_reply_is_lost_comes_to_an_epoch_all_the_same(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        store.loses_replies = True
        beginning = asyncio.ensure_future(a.begin())
        written = tmp_path / "store" / "leases" / "a"
        await until(lambda: list((tmp_path / "store").rglob("a")) or written.exists())
        store.loses_replies = False
        _, keeper = await beginning
        assert (await a.lease()).epoch == keeper.epoch
        keeper.check()


async def test_who_leaves_for_good_need_not_be_waited_for(store: Troubled, tmp_path: Path) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        _, keeper = await a.begin()
        await keeper.leave()
        assert (await a.lease()).state is State.LEFT
        with pytest.raises(Fenced, match="left its cluster"):
            keeper.check()
        begin, again = await a.begin()
        assert (begin, again.epoch) == (Begin.KEEP, 2)


async def test_a_host_that_leaves_acknowledges_nothing_from_before_it_is_told_and_is_not_fenced(
    store: Troubled, tmp_path: Path
) -> None:
    with hosts(tmp_path, store, "a") as [a]:
        _, keeper = await a.begin()
        seen: list[tuple[bool, str]] = []

        async def cover() -> None:
            seen.append((keeper.is_held, (await a.lease()).state))

        async with keeper.holding():
            machine = a.machine()
            await keeper.leave("b", cover)
            lease = await a.lease()
            assert (seen, lease.state, lease.heir) == ([(False, "held")], "left", "b")
            assert is_dead(machine)
            with pytest.raises(Fenced):
                keeper.check()
            await asyncio.sleep(2 * HOLD_MS / 1000)  # neither its warden nor it itself ends this process
            assert (await a.lease()) == lease
        begin, again = await a.begin()
        assert (begin, again.lease.heir) == (Begin.KEEP, "")
