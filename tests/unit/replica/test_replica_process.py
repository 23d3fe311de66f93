"""Litestream as a process: one at most, gone with poold, and with no secret where others could read it."""

import asyncio
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from poold import processes
from poold.devstore import S3Server
from poold.replica.errors import ReplicaError
from poold.replica.litestream import must_be_new
from tests.bench.host import Host, open_host
from tests.replicas import Place, in_s3, put
from tests.vm.client import until

ROOT = Path(__file__).parents[3]


def litestreams(state: Path) -> list[int]:
    return processes.find(str(state / "litestream" / "litestream.yml"))


async def test_no_secret_is_in_its_settings_or_its_arguments(tmp_path: Path, s3: S3Server) -> None:
    place = in_s3(tmp_path / "host", s3.client(), "secrets")
    async with asyncio.timeout(60), place.opened():
        settings = place.folder / "litestream" / "litestream.yml"
        assert settings.stat().st_mode & 0o777 == 0o600
        (pid,) = litestreams(place.folder)
        for told in (settings.read_bytes(), Path(f"/proc/{pid}/cmdline").read_bytes()):
            assert s3.secret_key.encode() not in told
            assert s3.access_key.encode() not in told
        assert (place.folder / "litestream.sock").stat().st_mode & 0o777 == 0o600
    assert litestreams(place.folder) == []


async def test_there_are_never_two_on_one_ledger(tmp_path: Path) -> None:
    """One that a former poold could not take with it holds the lock until the next one ends it."""
    place = Place(tmp_path / "host", tmp_path / "store")
    async with asyncio.timeout(60), place.opened() as (ledger, _):
        await ledger.write(partial(put, number=1))
    former = subprocess.Popen(place.litestream().argv()[3:], cwd=place.folder, stderr=subprocess.DEVNULL)
    try:
        until(lambda: litestreams(place.folder) == [former.pid])
        assert subprocess.run(place.litestream().argv()[3:], cwd=place.folder, check=False).returncode == 75
        async with asyncio.timeout(60), place.opened() as (ledger, replica):
            await ledger.write(partial(put, number=2))
            assert litestreams(place.folder) == [(await replica.view())["litestream"]["pid"]]
        assert not Path(f"/proc/{former.pid}").exists()
        assert await place.numbers() == {1, 2}
    finally:
        former.kill()
        former.wait()


def test_a_litestream_that_is_too_old_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "litestream"
    old.write_text("#!/bin/sh\necho v0.5.16\n")
    old.chmod(0o755)
    with pytest.raises(ReplicaError, match=r"version v0\.5\.16; 0\.5\.17 or newer"):
        must_be_new(old)


def pooldctl(host: Host, *words: str, code: int = 0) -> Any:
    environment = {**host.environment, "POOLD_SOCKET": str(host.socket)}
    argv = [sys.executable, "-m", "poold.ctl", "--json", *words]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(os.geteuid() != 0, reason="the folder for the sockets is made in /run")
def test_a_real_daemon_tells_of_its_replica_and_another_can_go_on_with_it(tmp_path: Path, s3: S3Server) -> None:
    settings = {"POOLD_ENGINE": "local", "POOLD_DEFAULT_IMAGE": "host", "POOLD_STORE": "s3://warren/daemon"}
    with open_host(pool="", **settings, **s3.client()) as host:
        host.wait_until_serving()
        status, made = host.call("POST", "/v1/sandboxes", {})
        assert status == 201
        told = pooldctl(host, "ledger", "status")
        where = "s3://warren/daemon/ledger/bench/1"
        assert (told["durability"], told["replica"]["where"], told["replica"]["up"]) == ("replicated", where, True)
        assert told["replica"]["litestream"]["pid"] in litestreams(host.state)
        drill = pooldctl(host, "ledger", "restore", "--verify")
        assert (drill["ok"], drill["path"], drill["behind"]) == (True, None, {"events": 0, "audit": 0})
        host.kill()
        until(lambda: litestreams(host.state) == [])
        kept = pooldctl(host, "ledger", "restore", "--from", where, "--to", str(tmp_path / "kept.db"))
        assert kept["events"] >= drill["events"]
        refused = pooldctl(host, "ledger", "restore", "--from", f"{where}0", "--verify", code=1)
        assert refused["code"] == "nothing_to_restore"
        host.start()
        host.wait_until_serving()
        assert host.call("GET", f"/v1/sandboxes/{made['id']}")[0] == 200
