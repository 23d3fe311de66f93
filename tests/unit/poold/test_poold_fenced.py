"""A host that does not hold its lease any more: it answers that, and nothing else."""

import dataclasses
from pathlib import Path

from poold_host import open_host

from contract.hosts import Host as Record
from poold.lease.guard import Guard, Targets
from poold.lease.keeper import Keeper
from poold.lease.members import Members
from poold.lease.membership import Membership
from poold.lease.notes import Notes
from poold.lease.starting import Ground, Held
from poold.lease.written import first
from poold.store.folder import open_folder

HOLD_MS = 10_000


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


async def test_a_host_whose_time_is_over_refuses_work_at_that_moment_and_is_not_ready(tmp_path: Path) -> None:
    clock, record = Clock(), Record("bench", "http://127.0.0.1:1")
    async with open_folder(tmp_path / "store") as store:
        guard, notes = Guard(tmp_path / "guard"), Notes(tmp_path)
        ground = Ground(store, guard, notes, Targets(), record, HOLD_MS, tmp_path / "ledger.db", clock)
        keeper = Keeper(ground, Held(first("bench", "0" * 32, "", HOLD_MS, record), "1", 0))
        member = Membership(keeper, Members(store, keeper, now_ns=clock))
        async with open_host(tmp_path, membership=member) as host:
            assert (await host.ask("GET", "/readyz")).status == 200
            sandbox = await host.create()
            told = (await host.admin("GET", "/admin/lease")).json
            assert (told["lease"]["state"], told["lease"]["left_s"]) == ("held", 10.0)
            clock.ns = HOLD_MS * 1_000_000
            for method, path in (
                ("GET", "/readyz"),
                ("POST", "/v1/sandboxes"),
                ("GET", f"/v1/sandboxes/{sandbox}"),
                ("POST", f"/v1/sandboxes/{sandbox}/exec"),
                ("DELETE", f"/v1/sandboxes/{sandbox}"),
            ):
                refused = await host.ask(method, path, {} if method == "POST" else None)
                assert (refused.status, refused.code) == (503, "fenced"), path
            assert (await host.ask("GET", "/healthz")).status == 200
            assert (await host.admin("GET", "/admin/lease")).json["lease"]["left_s"] == 0


async def test_a_host_that_is_alone_has_no_lease_and_does_everything(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        assert (await host.admin("GET", "/admin/lease")).json == {"lease": None, "hosts": []}
        assert (await host.ask("GET", "/readyz")).status == 200
        assert dataclasses.asdict(Membership()) == {"keeper": None, "members": None}
