"""A host whose ledger has a replica: what its clients and its operator hear while the store is away, and after."""

import asyncio
from pathlib import Path

import pytest

from poold.ledger.covering import Replication
from tests.unit.poold.poold_host import open_host

pytestmark = pytest.mark.usefixtures("nothing_warm")


async def test_while_the_store_is_away_nothing_is_acknowledged_and_the_host_says_so_when_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = asyncio.Event()
    store.set()

    async def cover() -> None:
        await store.wait()

    async with open_host(tmp_path, replication=Replication(cover, True)) as host:
        await host.create()
        assert (await host.ask("GET", "/readyz")).status == 200
        store.clear()
        creating = asyncio.ensure_future(host.create())
        while not host.services.ledger.lag_s:
            await asyncio.sleep(0.01)
        assert (await host.ask("GET", "/readyz")).status == 200  # for a moment it may be
        monkeypatch.setattr("poold.api.observe.BEHIND_S", 0.0)
        ready = await host.ask("GET", "/readyz")
        assert (ready.status, ready.code) == (503, "not_ready")
        assert "the ledger's replica has been behind for" in ready.json["error"]["message"]
        assert not (await host.ask("GET", "/v1/host")).json["ready"]
        assert not creating.done()
        store.set()
        await creating
        while host.services.ledger.lag_s:
            await asyncio.sleep(0.01)
        assert (await host.ask("GET", "/readyz")).status == 200


async def test_a_host_without_a_store_says_that_its_ledger_has_no_replica(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        told = (await host.admin("GET", "/admin/ledger")).json
        assert (told["durability"], told["lag_s"], told["replica"]) == ("local", None, None)
        assert told["bytes"] > 0
