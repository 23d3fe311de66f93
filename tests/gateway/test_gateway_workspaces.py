"""Workspaces through a gateway: any host tells of them, and one that is lost leaves what it has saved.

Real poolds (local engine) and a real gateway on loopback.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cluster import EVERYTHING, Cluster, Reply, ask, open_cluster
from tests.gateway.test_gateway_takeover import Client, cluster, host_of, lose

__all__ = ["cluster"]

ZSTD = b"\x28\xb5\x2f\xfd"


@pytest.fixture
def pair() -> Iterator[Cluster]:
    """Two hosts that share workspaces and nothing else."""
    with (
        tempfile.TemporaryDirectory(prefix="warren-") as folder,
        open_cluster(2, 1, POOLD_WORKSPACES=str(Path(folder) / "workspaces")) as pair,
    ):
        yield pair


class Person:
    """Somebody with a key."""

    def __init__(self, cluster: Cluster, owner: str) -> None:
        self._port, self._key = cluster.gateways[0].port, cluster.key(owner, scopes=EVERYTHING)

    def ask(self, method: str, path: str, body: object = None) -> Reply:
        return ask(self._port, method, path, body, self._key)

    def create(self, **wanted: object) -> str:
        reply = self.ask("POST", "/v1/sandboxes", wanted)
        assert reply.status == 201, reply.body
        name: str = reply.json["id"]
        return name

    def run(self, sandbox: str, cmd: str) -> Any:
        reply = self.ask("POST", f"/v1/sandboxes/{sandbox}/exec", {"cmd": cmd})
        assert (reply.status, reply.json["exit_code"]) == (200, 0), reply.body
        return reply.json["stdout"]


def test_workspaces_are_had_through_a_gateway_whatever_host_they_were_saved_on(pair: Cluster) -> None:
    ann, bob = Person(pair, "ann"), Person(pair, "bob")
    for number in range(1, 4):
        sandbox = ann.create(workspace="my-repl", template="python")
        ann.run(sandbox, f"echo {number} >> numbers")
        saved = ann.ask("POST", f"/v1/sandboxes/{sandbox}/workspace/save")
        assert (saved.status, saved.json["version"], saved.json["is_new"]) == (200, number, True)
        ended = ann.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        assert (ended.status, ended.json["workspace"]["saved_version"]) == (200, number)
    (listed,) = ann.ask("GET", "/v1/workspaces?limit=10").json["workspaces"]
    assert (listed["name"], listed["version"], listed["problem"]) == ("my-repl", 3, None)
    versions = ann.ask("GET", "/v1/workspaces/my-repl/versions").json["versions"]
    assert [each["version"] for each in versions] == [3, 2, 1]
    diff = ann.ask("GET", "/v1/workspaces/my-repl/diff?from=1&to=3&path=numbers").json
    assert diff["text"].endswith(" 1\n+2\n+3\n")
    restored = ann.ask("POST", "/v1/workspaces/my-repl/restore", {"version": 1})
    assert (restored.status, restored.json["version"], restored.json["restored_from"]) == (201, 4, 1)
    archive = ann.ask("GET", "/v1/workspaces/my-repl/versions/1/archive")
    assert (archive.status, archive.body[:4]) == (200, ZSTD)
    names = [each["name"] for each in ann.ask("GET", "/v1/templates").json["templates"]]
    assert names == ["node", "python", "web"]
    for method, path in (("GET", ""), ("GET", "/versions"), ("GET", "/diff"), ("GET", "/versions/1/archive")):
        assert bob.ask(method, f"/v1/workspaces/my-repl{path}").code == "not_found"
    assert bob.ask("DELETE", "/v1/workspaces/my-repl").code == "not_found"
    assert ann.ask("GET", "/v1/workspaces/No%20Name").code == "not_found"
    assert ann.ask("GET", "/v1/workspaces/my-repl/versions/0/archive").code == "bad_field"
    assert ann.ask("GET", "/v1/workspaces/my-repl/diff?from=x").code == "bad_field"
    # The other host tells the same.
    for host in pair.hosts.values():
        host.kill()
        assert ann.ask("GET", "/v1/workspaces/my-repl").json["version"] == 4
        host.start()
        pair.wait_until_alive()
    assert ann.ask("DELETE", "/v1/workspaces/my-repl").json == {"name": "my-repl", "versions": 4}
    assert ann.ask("GET", "/v1/workspaces/my-repl").code == "not_found"


def test_a_sandbox_that_is_lost_with_its_host_names_its_version_and_the_next_one_has_it(cluster: Cluster) -> None:
    client, ann = Client(cluster), Person(cluster, "ann")
    sandbox = client.create("/v1/sandboxes", workspace="my-repl")
    ann.run(sandbox, "echo kept > file")
    assert ann.ask("POST", f"/v1/sandboxes/{sandbox}/workspace/save").json["version"] == 1
    lose(cluster, host_of(cluster, "sandboxes", sandbox))
    view = client.until(f"/v1/sandboxes/{sandbox}", lambda view: view["state"] == "error")
    assert view["reason"].startswith("host_lost")
    assert view["reason"].endswith("its workspace my-repl was last saved as version 1")
    assert view["workspace"]["saved_version"] == 1
    other = client.create("/v1/sandboxes", workspace="my-repl")
    assert ann.run(other, "cat file") == "kept\n"
