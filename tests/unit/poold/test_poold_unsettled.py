"""While a lost host's line is open, its taker says so, to gateways that ask for ids, to operators and in metrics."""

from pathlib import Path
from typing import Any

from poold_host import Host, open_host

from contract.hosts import Host as Record
from contract.tickets import HEADER, Access
from poold.lease.clock import boot_id
from poold.lease.guard import Guard, Targets
from poold.lease.keeper import Keeper
from poold.lease.members import Lost, Members
from poold.lease.membership import Membership
from poold.lease.notes import Notes
from poold.lease.starting import Ground, Held
from poold.lease.written import first
from poold.replica.errors import ReplicaDamaged
from poold.store.folder import open_folder

HOLD_MS, LOST_MS = 1_000_000, 1_000
BOOT = boot_id()
NOBODYS = "sb-aaaaaaaaaaaaaaaa"
S = 1_000_000_000


class World:
    """A clock, and a replica that cannot be read until somebody has mended it."""

    def __init__(self) -> None:
        self.ns = 0
        self.is_damaged = True
        self.taken: list[Lost] = []

    def now_ns(self) -> int:
        return self.ns

    async def take_over(self, lost: Lost) -> None:
        if self.is_damaged:
            raise ReplicaDamaged("restoring", "ledger/lost/1", hint="decode header: EOF")
        self.taken.append(lost)


async def states(host: Host) -> Any:
    ticket = host.gateway.sign("gateway", Access.HOST)
    return (await host.knock("POST", "/v1/sandboxes/states", {"ids": [NOBODYS]}, **{HEADER: ticket})).json


async def troubles(host: Host) -> tuple[str | None, str]:
    """What is told of the lost host, and the metric."""
    told = (await host.admin("GET", "/admin/lease")).json["hosts"]
    [line] = [line for line in await metrics(host) if line.startswith("poold_takeover_troubles ")]
    return next(each.get("trouble") for each in told if each["host"] == "lost"), line


async def metrics(host: Host) -> list[str]:
    return (await host.ask("GET", "/metrics")).body.decode().splitlines()


async def test_a_line_that_cannot_be_carried_on_is_told_until_it_is(tmp_path: Path) -> None:
    world, record = World(), Record("bench", "http://127.0.0.1:1")
    async with open_folder(tmp_path / "leases") as store:
        ground = Ground(
            *(store, Guard(tmp_path / "guard"), Notes(tmp_path), Targets(), record),
            *(HOLD_MS, tmp_path / "ledger.db", world.now_ns),
        )
        mine = first("bench", "0" * 32, BOOT, HOLD_MS, record)
        keeper = Keeper(ground, Held(mine, (await store.create("leases/bench", mine.encode())).tag, 0))
        other = first("lost", "1" * 32, BOOT, LOST_MS, Record("lost", "http://127.0.0.1:2"))
        await store.create("leases/lost", other.encode())
        members = Members(store, keeper, take_over=world.take_over, now_ns=world.now_ns)
        async with open_host(tmp_path, membership=Membership(keeper, members)) as host:
            assert await states(host) == {"states": {NOBODYS: None}, "unsettled": True}  # nobody was looked at yet
            await members.look()
            assert await states(host) == {"states": {NOBODYS: None}}
            world.ns = 60 * S
            assert (await states(host))["unsettled"] is True  # it may be dead
            await members.act()
            assert (await states(host))["unsettled"] is True
            trouble, metric = await troubles(host)
            assert "decode header: EOF" in (trouble or "")
            assert metric == "poold_takeover_troubles 1"
            world.is_damaged = False
            world.ns = 120 * S
            await members.act()
            assert world.taken == [Lost("lost", 1, 1)]
            assert await states(host) == {"states": {NOBODYS: None}}
            assert await troubles(host) == (None, "poold_takeover_troubles 0")
