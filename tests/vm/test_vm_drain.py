"""A host is drained: its machines go on at another host, under the same ids, with all that ran in them."""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from poold.seal import new_key
from tests.bench.host import ROOT, Host, open_host
from tests.signing import Gateway
from tests.vm import traces
from tests.vm.client import Api, Sandbox, until
from tests.vm.conftest import BASE_UID, IMAGE, SLOTS
from tests.vm.test_vm_hibernate import COUNT, counted

LIMIT_S = 300.0
LEASE_S = "20"  # a busy computer does not make it lapse
# The mock works for half a minute: it is drained in the middle of that.
WORK = "\n".join(f"run echo step {number}\nsleep 2" for number in range(12)) + "\nedit done.txt done\ncommit Done"


@pytest.fixture
def shared() -> Iterator[Path]:
    """What two hosts share: a store, and the key with which they seal secrets for each other."""
    with tempfile.TemporaryDirectory(prefix="warren-store-") as folder:
        pki = Path(folder) / "pki"
        Gateway("both").write(pki)
        (pki / "seal.key").write_bytes(new_key())
        yield Path(folder)


@contextlib.contextmanager
def a_host(number: int, shared: Path) -> Iterator[Host]:
    variables = {
        "POOLD_NAME": f"host-{number}",
        "POOLD_DEFAULT_IMAGE": IMAGE,
        "POOLD_SLOTS": "4",
        "POOLD_BASE_UID": str(BASE_UID + SLOTS + 100 + 10 * number),
        "POOLD_PKI": str(shared / "pki"),
        "POOLD_STORE": str(shared / "store"),
        "POOLD_LEASE_SEC": LEASE_S,
    }
    with open_host(pool="", **variables) as host:
        host.wait_until_serving()
        yield host


def operator(host: Host) -> Api:
    return Api(host, as_operator=True, limit_s=LIMIT_S)


class Follower(threading.Thread):
    """Reads a task's events as somebody does who is behind a gateway: whoever has it now is asked, from the last on."""

    def __init__(self, task: str, hosts: list[Host]) -> None:
        super().__init__(daemon=True)
        self._task, self._hosts = task, hosts
        self.seen: list[dict[str, Any]] = []
        self.start()

    def run(self) -> None:
        while not self.is_done:
            for host in self._hosts:
                with contextlib.suppress(OSError, AssertionError, ValueError):
                    self._follow(operator(host))

    def _follow(self, api: Api) -> None:
        last = str(self.seen[-1]["seq"]) if self.seen else "0"
        headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
        with api.open("GET", f"/v1/tasks/{self._task}/events", headers=headers) as answer:
            assert answer.status == 200
            for line in answer:
                if line.startswith(b"data: "):
                    self.seen.append(json.loads(line[6:]))

    @property
    def told(self) -> int:
        """By the agent."""
        return sum(event["kind"].startswith("agent.") for event in self.seen)

    @property
    def is_done(self) -> bool:
        return bool(self.seen) and self.seen[-1]["kind"] in ("task.completed", "task.failed", "task.stopped")


def ctl(host: Host, *words: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "poold.ctl", "--socket", str(host.socket), *words]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def drained(host: Host, *words: str) -> tuple[int, list[dict[str, Any]], str]:
    process = ctl(host, "drain", "--json", *words)
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def begin_counting(sandbox: Sandbox) -> str:
    assert sandbox.put("/workspace/count.py", COUNT.encode()).status == 200
    sandbox.sh("cd /workspace && setsid nohup python3 count.py > count.log 2>&1 < /dev/null & sleep 0.1")
    until(lambda: int(sandbox.sh("wc -l < /dev/shm/count || echo 0")) > 20)
    return sandbox.sh("cat /proc/sys/kernel/random/boot_id")


def test_a_counter_and_a_task_go_on_at_the_other_host_with_the_same_ids(shared: Path) -> None:
    with a_host(1, shared) as one, a_host(2, shared) as two:
        api, there = operator(one), operator(two)
        sandbox = api.create()
        boot_id = begin_counting(sandbox)
        reply = api.post("/v1/tasks", agent="mock", prompt=WORK, env={"WORD": "ahem"})
        assert reply.status == 202, reply
        task = f"/v1/tasks/{reply.json['id']}"
        follower = Follower(reply.json["id"], [one, two])
        until(lambda: follower.told > 5, limit_s=LIMIT_S)
        worker = api.call("GET", task).json["sandbox"]
        before = len(counted(sandbox))
        code, told, err = drained(one)
        assert (code, err) == (0, ""), (told, one.log()[-4000:])
        assert told[-1]["event"] == "drained"
        assert told[-1]["moved"] == {sandbox.id: "host-2", worker: "host-2"}
        assert [each["step"] for each in told[:-1] if each["sandbox"] == sandbox.id] == [
            *("pausing", "hibernating", "hibernated", "resumed")
        ]
        moved = Sandbox(there, sandbox.id, sandbox.created)
        assert moved.view["state"] == "running"
        assert moved.sh("cat /proc/sys/kernel/random/boot_id") == boot_id
        until(lambda: len(counted(moved)) > before + 20)
        numbers = counted(moved)
        assert numbers == list(range(len(numbers)))
        assert traces.machines(one.state) == {}
        until(lambda: there.call("GET", task).json["state"] == "completed", limit_s=LIMIT_S)
        follower.join(LIMIT_S)
        assert [event["seq"] for event in follower.seen] == list(range(1, len(follower.seen) + 1))
        kinds = [event["kind"] for event in follower.seen]
        assert "task.continued" not in kinds  # it is the same agent, in the same machine
        assert there.call("GET", task).json["sandbox"] == worker
        until(lambda: "starting anew" in one.log(), limit_s=LIMIT_S)
        one.wait_until_serving()
        assert api.call("GET", "/v1/sandboxes?state=running").json["sandboxes"] == []
        assert api.post("/v1/sandboxes").refusal == (503, "draining")
        assert api.post("/admin/undrain").json == {"draining": False}
        assert api.create().destroy().status == 200
        assert moved.destroy().status == 200
