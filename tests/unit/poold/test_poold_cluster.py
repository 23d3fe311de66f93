"""The daemon as a process, as a member of a cluster, on the engine that needs no machines."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from poold.lease.clock import boottime_ns
from poold.lease.guard import Guard
from tests.bench.host import Host, open_host
from tests.vm.client import Api, until

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def _as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("the folder for the sockets is made in /run")


def open_member(store: Path, **variables: str) -> Any:
    settings = {"POOLD_ENGINE": "local", "POOLD_DEFAULT_IMAGE": "host", "POOLD_STORE": str(store), **variables}
    return open_host(pool="", **settings)


def told(host: Host) -> dict[str, Any]:
    asked: dict[str, Any] = Api(host, as_operator=True).call("GET", "/admin/lease").json
    return asked


def machines(host: Host) -> list[int]:
    mark = f"{host.state}/local/machines/".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                is_one = mark in (entry / "cmdline").read_bytes()
            except OSError:
                continue
            found += [int(entry.name)] if is_one else []
    return found


def ctl(host: Host, *words: str) -> str:
    argv = [sys.executable, "-m", "poold.ctl", "--socket", str(host.socket), *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout


def test_a_member_holds_its_lease_and_goes_on_after_a_kill_in_the_same_epoch(tmp_path: Path) -> None:
    with open_member(tmp_path / "store", POOLD_LEASE_SEC="60") as host:
        host.wait_until_serving()
        api = Api(host)
        sandbox = api.create()
        before = set(machines(host))
        assert told(host)["lease"]["epoch"] == 1
        assert api.call("GET", "/readyz").status == 200
        lease = json.loads(ctl(host, "lease", "--json"))
        assert (lease["host"], lease["state"], lease["epoch"]) == ("bench", "held", 1)
        assert "bench" in ctl(host, "hosts")
        assert "poold_lease_epoch 1" in api.call("GET", "/metrics").body.decode()
        host.kill()
        host.start()
        host.wait_until_serving()
        assert told(host)["lease"]["epoch"] == 1
        assert set(machines(host)) & before
        assert sandbox.view["state"] == "running"


def test_a_poold_that_is_stopped_too_long_is_killed_with_its_machines_and_comes_back_in_a_new_epoch(
    tmp_path: Path,
) -> None:
    with open_member(tmp_path / "store", POOLD_LEASE_SEC="2") as host:
        host.wait_until_serving()
        sandbox = Api(host).create()
        assert machines(host)
        os.kill(host.process.pid, signal.SIGSTOP)
        until(lambda: not machines(host), limit_s=LIMIT_S)
        assert host.process.wait(LIMIT_S) == -signal.SIGKILL
        host.connection.close()
        host.start()
        host.wait_until_serving()
        assert told(host)["lease"]["epoch"] == 2
        assert sandbox.view["state"] == "error"
        assert 'lease_fences_total{by="warden"} 1' in Api(host).call("GET", "/metrics").body.decode()


def test_a_poold_that_wakes_up_after_its_time_does_not_go_on(tmp_path: Path) -> None:
    """It sees to it itself; on a very busy computer its warden is first."""
    with open_member(tmp_path / "store", POOLD_LEASE_SEC="2") as host:
        host.wait_until_serving()
        sandbox = Api(host).create()
        guard = Guard(Path(host.environment["POOLD_RUN_DIR"]) / "lease")
        os.kill(host.process.pid, signal.SIGSTOP)
        until(lambda: boottime_ns() >= held_until(guard), limit_s=LIMIT_S)
        os.kill(host.process.pid, signal.SIGCONT)
        until(lambda: "starting anew" in host.log() or host.process.poll() is not None, limit_s=LIMIT_S)
        host.connection.close()
        if host.process.poll() is not None:
            host.start()
        host.wait_until_serving()
        assert told(host)["lease"]["epoch"] == 2
        assert sandbox.view["state"] == "error"


def held_until(guard: Guard) -> int:
    found = guard.read()
    assert found is not None
    return found.hold_ns


def test_a_host_whose_lease_was_taken_is_fenced_and_comes_back_by_itself_empty(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with open_member(store, POOLD_LEASE_SEC="5") as host:
        host.wait_until_serving()
        sandbox = Api(host).create()
        pid = host.process.pid
        take(store, "bench")
        until(lambda: not machines(host), limit_s=LIMIT_S)
        until(lambda: "starting anew" in host.log(), limit_s=LIMIT_S)
        host.connection.close()
        host.wait_until_serving()
        assert host.process.pid == pid
        assert host.process.poll() is None
        assert told(host)["lease"]["epoch"] == 3
        assert Api(host).call("GET", f"/v1/sandboxes/{sandbox.id}").status == 404
        assert list((host.state / "lost").rglob("ledger.db"))


def test_a_fenced_host_starts_anew_at_once_whoever_listens_and_leaves_no_dead_children(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with open_member(store, POOLD_LEASE_SEC="10", POOLD_DURABILITY="replicated") as host:
        host.wait_until_serving()
        sandbox = Api(host).create()
        with sandbox.follow("echo here; sleep 600") as events:  # a reply that never ends
            assert next(events)[0] == "start"
            take(store, "bench")
            until(lambda: "starting anew" in host.log(), limit_s=LIMIT_S)
        host.connection.close()
        host.wait_until_serving()
        assert host.process.poll() is None
        assert 'lease_fences_total{by="poold"} 1' in Api(host).call("GET", "/metrics").body.decode()
        until(lambda: dead_children(host.process.pid) == [], limit_s=LIMIT_S)  # one that has just ended is about to go


def dead_children(pid: int) -> list[str]:
    told = subprocess.run(["ps", "--ppid", str(pid), "-o", "stat=,args="], capture_output=True, text=True, check=False)
    return [line for line in told.stdout.splitlines() if line.startswith("Z")]


def test_a_member_does_not_run_alone(tmp_path: Path) -> None:
    with open_member(tmp_path / "store") as host:
        host.wait_until_serving()
        host.stop()
        alone = {name: value for name, value in host.environment.items() if name != "POOLD_STORE"}
        argv = [sys.executable, "-m", "poold"]
        done = subprocess.run(argv, env=alone, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 1
        assert "POOLD_STORE is not set, but this host is a member of a cluster" in done.stderr
        host.start()
        host.wait_until_serving()


def test_a_changed_name_with_an_old_state_folder_is_refused(tmp_path: Path) -> None:
    """Its ledger and its lease are those of the old name."""
    with open_member(tmp_path / "store") as host:
        host.wait_until_serving()
        host.stop()
        renamed = {**host.environment, "POOLD_NAME": "another"}
        argv = [sys.executable, "-m", "poold"]
        done = subprocess.run(argv, env=renamed, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 1
        assert "POOLD_NAME=another" in done.stderr
        assert "is of host bench" in done.stderr
        assert [path.name for path in (tmp_path / "store" / "leases").iterdir()] == ["bench"]
        host.start()
        host.wait_until_serving()


@pytest.mark.parametrize("how", ["removed", "emptied", "cut"])
def test_a_ledger_that_was_lost_is_restored_from_the_replica(tmp_path: Path, how: str) -> None:
    with open_member(tmp_path / "store", POOLD_LEASE_SEC="60", POOLD_DURABILITY="replicated") as host:
        host.wait_until_serving()
        sandbox = Api(host).create()
        host.kill()
        ledger = host.state / "ledger.db"
        for path in host.state.glob("ledger.db*"):
            if how == "cut" and path == ledger:
                os.truncate(path, 8192)
            elif how == "emptied" and path == ledger:
                os.truncate(path, 0)
            else:
                path.unlink()
        host.start()
        host.wait_until_serving()
        assert sandbox.view["state"] == "error"
        assert told(host)["lease"]["epoch"] == 2


def take(store: Path, name: str) -> None:
    """As another host would, that believes this one to be dead."""
    import asyncio

    from poold.lease.written import Lease
    from poold.store.errors import Conflict
    from poold.store.folder import open_folder

    async def once() -> None:
        async with open_folder(store) as shared:
            while True:
                blob = await shared.get(f"leases/{name}")
                taken = Lease.decode(blob.data, name).taken_by("another", 1)
                try:
                    await shared.replace(f"leases/{name}", taken.encode(), blob.entry.tag)
                except Conflict:
                    continue
                return

    asyncio.run(once())
