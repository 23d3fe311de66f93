"""A gateway and hosts that share nothing but a bucket: no folder is seen by two of them.

Real processes (local engine) and a real S3 server, reached through a proxy that knows bad days.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from poold.devstore import BUCKET
from tests.gateway.cluster import ROOT, Cluster, Program, Reply, ask, clustered, is_known, wait_for, write_pki
from tests.s3faults import S3Faults, open_faults
from tests.s3server import running_s3

STORE, REGISTRY = f"s3://{BUCKET}/c1", f"s3://{BUCKET}/c1/registry"


@contextlib.contextmanager
def faults_beside(upstream: int) -> Iterator[S3Faults]:
    """The proxy in a thread of its own."""
    found: list[tuple[S3Faults, asyncio.AbstractEventLoop]] = []
    is_open, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with open_faults(upstream) as faults:
            found.append((faults, asyncio.get_running_loop()))
            is_open.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert is_open.wait(60)
    try:
        yield found[0][0]
    finally:
        found[0][1].call_soon_threadsafe(stop.set)
        thread.join()


@dataclass
class Place:
    cluster: Cluster
    faults: S3Faults
    variables: dict[str, str]
    admin: str = ""

    @property
    def gateway(self) -> Program:
        return self.cluster.gateways[0]

    def ask(self, method: str, path: str, body: object = None, key: str | None = None) -> Reply:
        return ask(self.gateway.port, method, path, body, self.admin if key is None else key)

    def ctl(self, *words: str) -> Any:
        argv = [sys.executable, "-m", "poold.ctl", "keys", *words, "--json"]
        told = {**os.environ, **self.variables, "POOLD_STORE": STORE}
        done = subprocess.run(argv, cwd=ROOT, env=told, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def add_host(self, name: str) -> None:
        self.cluster.add_host(
            name, POOLD_REGISTRY=None, POOLD_STORE=STORE, POOLD_DURABILITY="local", POOLD_LEASE_SEC="600",
            **self.variables,
        )  # fmt: skip

    def healths(self) -> dict[str, str]:
        return {host["name"]: host["health"] for host in self.ask("GET", "/v1/hosts").json["hosts"]}

    def until(self, is_so: Any, what: str) -> None:
        wait_for(is_so, what, self.gateway.told)


@pytest.fixture
def place() -> Iterator[Place]:
    with running_s3() as s3, faults_beside(s3.ports[0]) as faults, clustered() as cluster:
        (cluster.registry / "keys").rmdir()
        cluster.registry.rmdir()
        write_pki(cluster.folder / "pki")
        place = Place(cluster, faults, {**s3.client(), "AWS_ENDPOINT_URL": faults.url, "NO_PROXY": "127.0.0.1"})
        made = place.ctl("create", "--owner", "ann", "--scope", "admin", "--scope", "sandboxes", "--rate", "10000")
        place.admin = made["secret"]
        for name in ("one", "two"):
            place.add_host(name)
        cluster.add_gateway(GATEWAY_REGISTRY=REGISTRY, GATEWAY_REGISTRY_TIMEOUT_SEC="2", **place.variables)
        cluster.wait_until_alive()
        yield place
        assert not cluster.registry.exists()


def test_a_gateway_and_its_hosts_share_nothing_but_a_bucket(place: Place) -> None:
    """Hosts come and go, keys are made and revoked by both ways, and the store has an outage meanwhile."""
    assert place.healths() == {"one": "alive", "two": "alive"}
    made = place.ask("POST", "/v1/sandboxes", {})
    assert made.status == 201, made.body
    sandbox = f"/v1/sandboxes/{made.json['id']}"

    # Keys by pooldctl and by the gateway, with lost replies.
    place.faults.lose_replies(times=1, method="PUT", key="/keys/")
    by_ctl = place.ctl("create", "--owner", "bob")
    place.until(lambda: is_known(place.gateway.port, by_ctl["secret"]), "the key of pooldctl")
    place.faults.lose_replies(times=1, method="PUT", key="/keys/")
    by_gateway = place.ask("POST", "/v1/keys", {"owner": "bob"})
    assert by_gateway.status == 201, by_gateway.body
    assert place.ask("GET", "/v1/usage", key=by_gateway.json["secret"]).status == 200
    place.faults.lose_replies(times=1, method="PUT", key="/keys/")
    assert place.ask("DELETE", f"/v1/keys/{by_gateway.json['id']}").json["active"] is False
    assert place.ask("GET", "/v1/usage", key=by_gateway.json["secret"]).status == 401
    place.ctl("revoke", by_ctl["id"][:12])
    place.until(lambda: place.ask("GET", "/v1/usage", key=by_ctl["secret"]).status == 401, "the revocation")
    assert {key["id"]: key["active"] for key in place.ctl("list")["keys"]} == {
        key["id"]: key["active"] for key in place.ask("GET", "/v1/keys").json["keys"]
    }

    # The store is away: what is known goes on, and it is told.
    place.faults.drop()
    place.until(lambda: place.ask("GET", "/readyz").status == 503, "readyz without the registry")
    assert b"gateway_registry_read 0" in place.ask("GET", "/metrics").body
    assert place.ask("POST", f"{sandbox}/exec", {"cmd": "echo on"}).json["stdout"] == "on\n"
    assert place.ask("GET", "/v1/usage", key=by_ctl["secret"]).status == 401
    refused = place.ask("POST", "/v1/keys", {"owner": "bob"})
    assert (refused.status, refused.code) == (503, "registry_unreachable")
    assert place.healths() == {"one": "alive", "two": "alive"}
    place.faults.heal()
    place.until(lambda: place.ask("GET", "/readyz").status == 200, "readyz with the registry")
    assert b"gateway_registry_read 1" in place.ask("GET", "/metrics").body
    assert "the registry cannot be read" in place.gateway.log.read_text()

    # A host is added, and another one goes.
    place.add_host("three")
    place.until(lambda: place.healths().get("three") == "alive", "the third host")
    place.cluster.hosts["three"].kill()
    place.until(lambda: place.healths()["three"] == "dead", "the end of the third host")
    assert place.ask("DELETE", sandbox).status == 200
