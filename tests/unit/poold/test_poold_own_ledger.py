"""A host whose own ledger is lost, or an older copy: it goes on with what the store has, or waits and says why."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.bench.host import Host
from tests.unit.poold.test_poold_cluster import LIMIT_S, ctl, open_member, told
from tests.vm.client import Api, until

WAITS = "this host's ledger cannot be restored"


@pytest.fixture(autouse=True)
def _as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("the folder for the sockets is made in /run")


def lose_ledger(host: Host) -> None:
    for path in host.state.glob("ledger.db*"):
        path.unlink()


def damage(store: Path, epoch: int) -> dict[Path, bytes]:
    """Empty every file of a replica; what they were."""
    kept = {path: path.read_bytes() for path in (store / "ledger" / "bench" / str(epoch)).rglob("*.ltx")}
    assert kept
    for path in kept:
        path.write_bytes(b"")
    return kept


def until_it_waits(host: Host, times: int = 1) -> None:
    until(lambda: host.log().count(WAITS) >= times, limit_s=LIMIT_S)
    assert host.process.poll() is None
    with pytest.raises(ConnectionRefusedError):
        host.call("GET", "/healthz")


def status_of(host: Host, sandbox: str) -> int:
    status: int = Api(host).call("GET", f"/v1/sandboxes/{sandbox}").status
    return status


def test_a_host_whose_replica_is_damaged_waits_and_goes_on_when_it_is_whole(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with open_member(store, POOLD_LEASE_SEC="60", POOLD_DURABILITY="replicated") as host:
        host.wait_until_serving()
        sandbox = Api(host).create()
        host.kill()
        lose_ledger(host)
        kept = damage(store, 1)
        host.start()
        until_it_waits(host)
        host.stop()  # it can be stopped while it waits, and waits again
        assert host.process.returncode == 0
        before = host.log().count(WAITS)
        host.start()
        until_it_waits(host, before + 1)
        said = next(line for line in host.log().splitlines() if WAITS in line)
        assert "ledger/bench/1" in said
        assert "pooldctl ledger accept" in said
        assert {path: path.read_bytes() for path in kept} == dict.fromkeys(kept, b"")
        for path, data in kept.items():
            path.write_bytes(data)
        host.wait_until_serving()
        assert sandbox.view["state"] == "error"


def test_a_host_whose_replica_is_damaged_goes_on_with_an_older_one_that_its_operator_accepts(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with open_member(store, POOLD_LEASE_SEC="60", POOLD_DURABILITY="replicated") as host:
        host.wait_until_serving()
        first = Api(host).create().id
        host.kill()
        lose_ledger(host)
        host.start()
        host.wait_until_serving()
        assert told(host)["lease"]["epoch"] == 2
        second = Api(host).create().id
        host.kill()
        lose_ledger(host)
        damage(store, 2)
        host.start()
        until_it_waits(host)
        ctl(host, "ledger", "accept", "bench", "--epoch", "1", "--state-dir", str(host.state))
        host.wait_until_serving()
        assert (status_of(host, first), status_of(host, second)) == (200, 404)
        assert list((host.state / "accepted").iterdir()) == []  # it was for once
        lease = told(host)["lease"]
        assert (lease["epoch"], lease["root"]) == (3, 1)


def test_a_state_folder_that_is_an_older_copy_is_restored_from_the_replica(tmp_path: Path) -> None:
    with open_member(tmp_path / "store", POOLD_LEASE_SEC="60", POOLD_DURABILITY="replicated") as host:
        host.wait_until_serving()
        first = Api(host).create().id
        host.stop()
        shutil.copytree(host.state, tmp_path / "backup", ignore=shutil.ignore_patterns("local"))  # it has sockets
        lose_ledger(host)
        host.start()
        host.wait_until_serving()
        assert told(host)["lease"]["epoch"] == 2
        second = Api(host).create().id
        host.stop()
        shutil.rmtree(host.state)
        shutil.copytree(tmp_path / "backup", host.state)
        assert json.loads((host.state / "lease.json").read_bytes())["epoch"] == 1
        host.start()
        host.wait_until_serving()
        assert (status_of(host, first), status_of(host, second)) == (200, 200)
        assert told(host)["lease"]["epoch"] == 3
        assert list((host.state / "lost").rglob("ledger.db"))  # nothing was deleted
