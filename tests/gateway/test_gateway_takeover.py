"""A host is lost with all that ran on it: another one of its cluster carries on what it had acknowledged.

Real poolds (local engine) and a real gateway on loopback, with a real S3 server as the one thing that hosts share.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from poold.devstore import BUCKET
from poold.seal import new_key
from tests.gateway.cluster import EVERYTHING, Cluster, ask, clustered, operate, wait_for, write_pki
from tests.s3server import running_s3

LEASE_S = "2"
HOSTS = 3


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running_s3() as s3, clustered() as cluster:
        write_pki(cluster.folder / "pki")
        (cluster.folder / "pki" / "seal.key").write_bytes(new_key())
        for number in range(HOSTS):
            cluster.add_host(
                f"host-{number}",
                POOLD_STORE=f"s3://{BUCKET}/c1",
                POOLD_LEASE_SEC=LEASE_S,
                POOLD_SLOTS="2",
                **s3.client(),
            )
        cluster.add_gateway()
        cluster.wait_until_alive()
        yield cluster


def lose(cluster: Cluster, name: str) -> None:
    """All of the host is gone at once, as with its power: poold, its warden, Litestream, and every machine."""
    folder = bytes(cluster.folder / name)
    for _ in range(3):  # what was just being started is found the next time
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                told = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
                if folder in told and int(pid) != os.getpid():
                    os.kill(int(pid), signal.SIGKILL)
    process = cluster.hosts[name].process
    assert process is not None
    process.wait()


def host_of(cluster: Cluster, task: str) -> str:
    for name, host in cluster.hosts.items():
        with contextlib.suppress(OSError, AssertionError):
            if operate(host, "GET", f"/v1/tasks/{task}")["id"] == task:
                return name
    raise AssertionError(f"no host has {task}")


def numbers(port: int, key: str, task: str) -> list[int]:
    events = ask(port, "GET", f"/api/v1/tasks/{task}/events?limit=1000", key=key).json["events"]
    return [event["seq"] for event in events]


def test_a_lost_hosts_sandbox_is_an_error_that_says_why_and_its_tasks_go_on(cluster: Cluster) -> None:
    key, port = cluster.key("ann", scopes=EVERYTHING), cluster.gateways[0].port
    made = [
        ask(port, "POST", "/api/v1/tasks", {"agent": "mock", "prompt": f"run echo {number}\nsleep 6\ncommit Done"}, key)
        for number in range(4)
    ]
    assert [reply.status for reply in made] == [202] * 4, [reply.body for reply in made]
    tasks = [reply.json["id"] for reply in made]
    sandbox = ask(port, "POST", "/v1/sandboxes", {}, key)
    assert sandbox.status == 201, sandbox.body
    lost = host_of(cluster, tasks[0])
    seen = numbers(port, key, tasks[0])
    began = time.monotonic()
    lose(cluster, lost)

    def is_over(task: str) -> bool:
        return ask(port, "GET", f"/api/v1/tasks/{task}", key=key).json.get("state") in ("completed", "failed")

    for task in tasks:
        wait_for(lambda task=task: is_over(task), task)
    print(f"over after {time.monotonic() - began:.1f} s")
    for task in tasks:
        view = ask(port, "GET", f"/api/v1/tasks/{task}", key=key).json
        print(task, view["state"], view["reason"])
        found = numbers(port, key, task)
        assert found == list(range(1, len(found) + 1))
    assert len(numbers(port, key, tasks[0])) > len(seen)
