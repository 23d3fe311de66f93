"""What a replica gets from a host that has lost its lease counts for nothing, and is acknowledged to nobody."""

import asyncio
from pathlib import Path

import pytest

from poold.errors import Fenced, LedgerError
from poold.ledger import Ledger, sandboxes
from poold.ledger.covering import Replication
from tests.unit.ledger.rows import box


class Lease:
    """A lease that is lost at a moment of the test's choice."""

    def __init__(self) -> None:
        self.is_held = True
        self.covers = 0
        self.may_cover = asyncio.Event()
        self.may_cover.set()

    def check(self) -> None:
        if not self.is_held:
            raise Fenced("lost")

    async def cover(self) -> None:
        self.covers += 1
        await self.may_cover.wait()

    def replication(self) -> Replication:
        return Replication(self.cover, holds=True, check=self.check)


async def test_a_write_whose_sync_ends_after_the_lease_was_lost_is_not_acknowledged(tmp_path: Path) -> None:
    lease = Lease()
    async with Ledger.open(tmp_path / "ledger.db", replication=lease.replication()) as ledger:
        await ledger.write(lambda db: sandboxes.add(db, box(1)))
        lease.may_cover.clear()
        writing = asyncio.ensure_future(ledger.write(lambda db: sandboxes.add(db, box(2))))
        before = lease.covers
        async with asyncio.timeout(10):
            while lease.covers == before:
                await asyncio.sleep(0)
        lease.is_held = False
        lease.may_cover.set()
        with pytest.raises(Fenced):
            await writing


async def test_who_writes_after_the_lease_was_lost_is_told_at_once(tmp_path: Path) -> None:
    """Else whoever is being ended and writes its last words waits for what nobody will ever say."""
    lease = Lease()
    async with Ledger.open(tmp_path / "ledger.db", replication=lease.replication()) as ledger:
        await ledger.write(lambda db: sandboxes.add(db, box(1)))
        lease.is_held = False
        for number in (2, 3):
            with pytest.raises(Fenced):
                async with asyncio.timeout(10):
                    await ledger.write(lambda db, number=number: sandboxes.add(db, box(number)))  # type: ignore[misc]
        with pytest.raises(Fenced):
            await ledger.write(lambda db: sandboxes.add(db, box(4)), durable=False)


async def test_a_ledger_of_a_host_that_lost_its_lease_is_closed_without_waiting_for_the_store(tmp_path: Path) -> None:
    lease = Lease()
    async with Ledger.open(tmp_path / "ledger.db", replication=lease.replication()) as ledger:
        lease.is_held = False
        lease.may_cover.clear()  # the store never answers again
        writing = asyncio.ensure_future(ledger.write(lambda db: sandboxes.add(db, box(1))))
        await asyncio.sleep(0)
    with pytest.raises((Fenced, LedgerError)):
        await writing
    assert lease.covers == 1  # the one before it was lost


@pytest.mark.parametrize("holds", [True, False])
async def test_who_waits_for_the_replica_waits_until_it_has_all_that_was_committed(tmp_path: Path, holds: bool) -> None:
    lease = Lease()
    way = Replication(lease.cover, holds=holds, check=lease.check)
    async with asyncio.timeout(30), Ledger.open(tmp_path / "ledger.db", replication=way) as ledger:
        await ledger.covered()
        lease.may_cover.clear()
        await ledger.write(lambda db: sandboxes.add(db, box(1)), durable=False)
        waiting = asyncio.ensure_future(ledger.covered())
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
        lease.may_cover.set()
        await waiting


async def test_a_ledger_without_a_replica_has_nothing_to_wait_for(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        await ledger.covered()


async def test_who_waits_for_the_replica_of_a_host_that_lost_its_lease_is_told_at_once(tmp_path: Path) -> None:
    lease = Lease()
    async with Ledger.open(tmp_path / "ledger.db", replication=lease.replication()) as ledger:
        lease.is_held = False
        for _ in range(2):
            with pytest.raises(Fenced):
                async with asyncio.timeout(10):
                    await ledger.covered()
