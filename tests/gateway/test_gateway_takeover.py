"""A host is lost with all that ran on it: another one of its cluster carries on what it had acknowledged.

Real poolds (local engine) and a real gateway on loopback, with a real S3 server as the one thing that hosts share.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.ring import ranked
from poold.devstore import BUCKET
from poold.seal import new_key
from tests.gateway.cluster import EVERYTHING, Cluster, Reply, ask, clustered, operate, wait_for, write_pki
from tests.s3server import running_s3

LEASE_S = "2"
HOSTS = 3
ZSTD = b"\x28\xb5\x2f\xfd"


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


def host_of(cluster: Cluster, kind: str, one: str) -> str:
    """Which host has it, as the hosts themselves say."""
    for name, host in cluster.hosts.items():
        with contextlib.suppress(OSError, AssertionError):
            if operate(host, "GET", f"/v1/{kind}/{one}")["id"] == one:
                return name
    raise AssertionError(f"no host has {one}")


class Client:
    """Somebody who asks the gateway."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._port, self._key = cluster.gateways[0].port, cluster.key("ann", scopes=EVERYTHING)

    def get(self, path: str) -> Reply:
        return ask(self._port, "GET", path, key=self._key)

    def create(self, path: str, **body: object) -> str:
        reply = ask(self._port, "POST", path, body, self._key)
        assert reply.status in (201, 202), reply.body
        name: str = reply.json["id"]
        return name

    def task(self, prompt: str) -> str:
        return self.create("/api/v1/tasks", agent="mock", prompt=prompt)

    def events(self, task: str) -> list[dict[str, Any]]:
        """Without `id`, which counts what happened on one host."""
        found = self.get(f"/api/v1/tasks/{task}/events?limit=1000").json["events"]
        return [{name: value for name, value in event.items() if name != "id"} for event in found]

    def until(self, path: str, is_so: Callable[[Any], bool]) -> Any:
        found: list[Any] = []

        def look() -> bool:
            reply = self.get(path)
            found.append(reply.json)
            return reply.status == 200 and is_so(reply.json)

        told = [host.told for host in self._cluster.hosts.values()]
        wait_for(look, path, lambda: f"{found[-1:]}\n" + "".join(tell() for tell in told))
        return found[-1]


def is_over(view: Any) -> bool:
    return view["state"] in ("completed", "failed", "stopped")


def test_a_lost_hosts_tasks_go_on_elsewhere_and_its_sandboxes_say_why_they_do_not(cluster: Cluster) -> None:
    client = Client(cluster)
    sandbox = client.create("/v1/sandboxes")
    over = client.task("edit kept.txt kept\ncommit Kept")
    client.until(f"/api/v1/tasks/{over}", is_over)
    tasks = [client.task(f"run echo {number}\ncommit One\nsleep 6\ncommit Two") for number in range(4)]
    for task in tasks:
        client.until(f"/api/v1/tasks/{task}", lambda view: view["state"] != "queued")
    lost = host_of(cluster, "tasks", tasks[0])
    theirs = [task for task in tasks if host_of(cluster, "tasks", task) == lost]
    seen = {task: client.events(task) for task in theirs}
    had_sandbox, had_over = host_of(cluster, "sandboxes", sandbox) == lost, host_of(cluster, "tasks", over) == lost
    lose(cluster, lost)
    for task in tasks:
        view = client.until(f"/api/v1/tasks/{task}", is_over)
        assert view["state"] == "completed", view
        events = client.events(task)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert events[: len(seen.get(task, []))] == seen.get(task, [])
        subjects = [each["subject"] for each in view["result"]["commits"]]
        assert [subjects.count(name) for name in ("One", "Two")] == [1, 1], subjects
        assert client.get(f"/api/v1/tasks/{task}/archive").body[:4] == ZSTD
    assert all(host_of(cluster, "tasks", task) != lost for task in theirs)
    view = client.until(f"/v1/sandboxes/{sandbox}", lambda view: (view["state"] == "error") is had_sandbox)
    assert not had_sandbox or view["reason"].startswith("host_lost"), view
    assert client.get(f"/api/v1/tasks/{over}/archive").body[:4] == ZSTD
    assert had_over or had_sandbox or theirs  # something was lost


def test_a_host_that_comes_back_after_it_was_taken_over_is_empty_and_takes_work(cluster: Cluster) -> None:
    client = Client(cluster)
    task = client.task("sleep 4\ncommit Two")
    client.until(f"/api/v1/tasks/{task}", lambda view: view["state"] == "running")
    lost = host_of(cluster, "tasks", task)
    lose(cluster, lost)
    assert client.until(f"/api/v1/tasks/{task}", is_over)["state"] == "completed"
    cluster.hosts[lost].start()
    cluster.wait_until_alive()
    assert operate(cluster.hosts[lost], "GET", "/v1/tasks")["tasks"] == []
    assert host_of(cluster, "tasks", task) != lost
    assert client.get(f"/api/v1/tasks/{task}").json["state"] == "completed"


def repeated(cluster: Cluster, number: int, key: str, secret: str, body: object) -> Reply:
    """The same request again, at the gateway of that number, until it is answered with more than "not now"."""
    found: list[Reply] = []

    def is_answered() -> bool:
        found.append(ask(cluster.gateways[number].port, "POST", "/api/v1/tasks", body, secret, Idempotency_Key=key))
        if found[-1].status == 503:
            assert found[-1].headers.get("retry-after"), found[-1]
        return found[-1].status != 503

    wait_for(is_answered, f"a repeat of {key}", lambda: str(found[-1:]))
    return found[-1]


def test_a_key_gives_the_first_task_again_after_the_host_died_that_knew_it(cluster: Cluster) -> None:
    """Through another gateway, and from the moment on when the host is gone."""
    cluster.add_gateway()
    secret = cluster.key("ann", scopes=EVERYTHING)
    home = next(iter(ranked("ann", dict.fromkeys(cluster.hosts, 1.0))))
    body = {"agent": "mock", "prompt": "commit One"}
    first = {f"key-{number}": repeated(cluster, 0, f"key-{number}", secret, body).json["id"] for number in range(4)}
    lose(cluster, home)
    for key, task in first.items():
        reply = repeated(cluster, 1, key, secret, body)
        assert (reply.status, reply.json["id"]) == (202, task), reply
    reply = repeated(cluster, 0, "another-key", secret, body)
    assert reply.status == 202
    assert reply.json["id"] not in first.values()
    tasks = ask(cluster.gateways[0].port, "GET", "/api/v1/tasks?limit=100", key=secret).json["tasks"]
    assert sorted(each["id"] for each in tasks) == sorted([*first.values(), reply.json["id"]])
