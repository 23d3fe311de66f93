"""Two daemons as processes, with real leases and real replicas, on the engine that needs no machines and can save none.

So what runs is given up, and its task goes on at the other host from its last checkpoint.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from poold.devstore import BUCKET
from poold.seal import new_key
from tests.bench.host import ROOT, Host, open_host
from tests.s3server import running_s3
from tests.signing import Gateway
from tests.vm.client import Api, until

LIMIT_S = 120.0
LEASE_S = "30"  # on a busy computer none lapses
WORK = "run echo one\nedit one.txt one\ncommit One\nsleep 600"


@pytest.fixture(autouse=True)
def _as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("the folder for the sockets is made in /run")


@pytest.fixture(params=["folder", "s3"])
def shared(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The settings that hosts have in common."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warren-shared-")))
        Gateway("both").write(folder / "pki")
        (folder / "pki" / "seal.key").write_bytes(new_key())
        settings = {"POOLD_PKI": str(folder / "pki"), "POOLD_LEASE_SEC": LEASE_S}
        if request.param == "s3":
            s3 = stack.enter_context(running_s3())
            yield {**settings, "POOLD_STORE": f"s3://{BUCKET}/drain", **s3.client()}
        else:
            yield {**settings, "POOLD_STORE": str(folder / "store")}


@contextlib.contextmanager
def a_host(name: str, shared: dict[str, str]) -> Iterator[Host]:
    settings = {"POOLD_ENGINE": "local", "POOLD_DEFAULT_IMAGE": "host", "POOLD_SLOTS": "4", "POOLD_NAME": name}
    with open_host(pool="", **settings, **shared) as host:
        host.wait_until_serving()
        yield host


def operator(host: Host) -> Api:
    return Api(host, as_operator=True, limit_s=LIMIT_S)


def ctl(host: Host, *words: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "poold.ctl", "--socket", str(host.socket), "drain", *words]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def begin_task(host: Host) -> str:
    """A task with a checkpoint."""
    reply = operator(host).post("/v1/tasks", agent="mock", prompt=WORK, checkpoint={"steps": 1})
    assert reply.status == 202, reply
    task: str = reply.json["id"]
    until(lambda: "task.checkpoint" in kinds(host, task), limit_s=LIMIT_S)
    return task


def kinds(host: Host, task: str) -> list[str]:
    events: list[dict[str, Any]] = operator(host).call("GET", f"/v1/tasks/{task}/events?limit=1000").json["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    return [event["kind"] for event in events]


def is_empty(host: Host) -> bool:
    with contextlib.suppress(OSError, ValueError, KeyError):
        told = operator(host).call("GET", "/admin/status").json
        return bool(told["draining"]) and told["drain"] is None and not any(told["sandboxes"].values())
    return False


def has(host: Host, task: str) -> bool:
    with contextlib.suppress(OSError):
        return operator(host).call("GET", f"/v1/tasks/{task}").status == 200
    return False


def test_what_an_engine_cannot_move_is_named_and_its_task_goes_on_from_its_checkpoint(shared: dict[str, str]) -> None:
    with a_host("host-1", shared) as one, a_host("host-2", shared) as two:
        task = begin_task(one)
        sandbox = operator(one).call("GET", f"/v1/tasks/{task}").json["sandbox"]
        until(lambda: len(operator(one).call("GET", "/admin/lease").json["hosts"]) == 2, limit_s=LIMIT_S)
        refused = ctl(one)
        _, err = refused.communicate(timeout=LIMIT_S)
        assert refused.returncode == 1
        assert "the local engine of this host cannot move a machine" in err
        assert sandbox in err
        draining = ctl(one, "--force", "--json")
        out, err = draining.communicate(timeout=LIMIT_S)
        told = [json.loads(line) for line in out.splitlines()]
        assert (draining.returncode, err) == (1, ""), one.log()[-3000:]
        assert (told[-1]["to"], list(told[-1]["failed"]), told[-1]["undone"]) == ("host-2", [sandbox], None)
        assert (told[-1]["moved"], told[-1]["asleep"], told[-1]["unknown"]) == ({}, {}, [])
        until(lambda: "task.continued" in kinds(two, task), limit_s=LIMIT_S)
        until(lambda: is_empty(one), limit_s=LIMIT_S)
        assert not has(one, task)
        assert operator(one).post("/admin/undrain").json == {"draining": False}
        assert operator(one).call("GET", "/readyz").status == 200
        assert operator(two).post(f"/v1/tasks/{task}/stop").status in (200, 202)


@pytest.mark.parametrize("step", ["begun", "handing_over", "handed_over"])
def test_a_daemon_that_is_killed_while_it_is_drained_goes_on_with_it(shared: dict[str, str], step: str) -> None:
    with a_host("host-1", shared) as one, a_host("host-2", shared) as two:
        task = begin_task(one)
        until(lambda: len(operator(one).call("GET", "/admin/lease").json["hosts"]) == 2, limit_s=LIMIT_S)
        draining = ctl(one, "--force", "--json")
        assert draining.stdout is not None
        for line in draining.stdout:
            if json.loads(line).get("step") == step:
                break
        one.kill()
        draining.communicate(timeout=LIMIT_S)
        assert draining.returncode == 3
        one.start()
        until(lambda: is_empty(one), limit_s=LIMIT_S)
        until(lambda: has(two, task), limit_s=LIMIT_S)
        until(lambda: "task.continued" in kinds(two, task), limit_s=LIMIT_S)
        assert not has(one, task)
        assert operator(two).post(f"/v1/tasks/{task}/stop").status in (200, 202)
