"""Workspaces of real machines: saved at the end, pulled by another host, and whole whenever poold is killed."""

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.host import Host, open_host
from tests.vm.client import Api, Sandbox, until
from tests.vm.conftest import BASE_UID, IMAGE, SLOTS

NAME = "my-repl"
FILL = """
cd /workspace
mkdir -p src/deep empty
printf 'one' > src/deep/a
chmod 640 src/deep/a; chmod 2750 src; chmod 700 empty
ln -s ../src/deep/a src/link; ln src/deep/a hard; mkfifo pipe
printf 'root' | sudo tee of-root > /dev/null; sudo chown 0:0 of-root; sudo chmod 600 of-root
truncate -s 64M sparse; printf 'end' >> sparse
"""
LOOK = """
cd /workspace
find . -mindepth 1 -printf '%P %y %m %U:%G %l %s\\n' | sort
stat -c %h hard; cat src/deep/a; tail -c 3 sparse; du -k sparse | cut -f1
"""


@pytest.fixture
def store() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="warren-workspaces-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def host_number(number: int, store: Path) -> Iterator[Host]:
    """A poold with folders of its own, that shares workspaces and nothing else with others."""
    base_uid = str(BASE_UID + SLOTS + 40 + 10 * number)
    variables = {"POOLD_DEFAULT_IMAGE": IMAGE, "POOLD_SLOTS": "4", "POOLD_BASE_UID": base_uid}
    with open_host(pool=f"{IMAGE}=1-1", POOLD_WORKSPACES=str(store), **variables) as host:
        host.wait_until_warm()
        yield host


def again(host: Host) -> None:
    """A daemon that takes over what a killed one left."""
    host.start()
    host.wait_until_serving()


def versions(host: Host) -> list[Any]:
    found: list[Any] = Api(host).call("GET", f"/v1/workspaces/{NAME}/versions").json.get("versions", [])
    return found


def saved_by(sandbox: Sandbox) -> int | None:
    version: int | None = sandbox.view["workspace"]["saved_version"]
    return version


def test_what_one_host_saved_is_pulled_by_another_as_it_was(store: Path) -> None:
    with host_number(0, store) as first, host_number(1, store) as second:
        sandbox = Api(first).create(workspace=NAME)
        sandbox.sh(FILL)
        before = sandbox.sh(LOOK)
        assert sandbox.destroy().status == 200
        assert saved_by(sandbox) == 1
        other = Api(second).create(workspace=NAME)
        assert other.sh(LOOK) == before
        assert other.view["workspace"]["from_version"] == 1
        # A pause saves, too; and what it saved need not be woken up to end.
        other.sh("rm /workspace/hard; echo two > /workspace/two")
        assert other.pause()["workspace"]["saved_version"] == 2
        assert other.destroy().status == 200
        third = Api(first).create(workspace=NAME)
        assert third.sh("cat /workspace/two; ls /workspace | wc -l") == "two\n6"
        assert third.destroy().status == 200
        assert [each["version"] for each in versions(second)] == [2, 1]


def test_a_machine_that_slept_unsaved_is_woken_up_to_be_saved(store: Path) -> None:
    with host_number(0, store) as host:
        sandbox = Api(host).create(workspace=NAME)
        sandbox.sh("echo one > /workspace/a")
        hidden = store.with_name(f"{store.name}-away")
        store.rename(hidden)
        store.write_text("this is no folder")
        try:
            assert sandbox.pause()["state"] == "paused"
            kinds = [event["kind"] for event in sandbox.events()]
            assert "workspace_unsaved" in kinds
            reply = sandbox.destroy()
            assert reply.refusal == (503, "workspace_unsaved"), reply
        finally:
            store.unlink()
            hidden.rename(store)
        until(lambda: sandbox.view["state"] == "stopped" or sandbox.destroy().status == 200)
        assert saved_by(sandbox) == 1


@pytest.mark.parametrize("moment", ["spooling", "writing"])
def test_a_daemon_that_is_killed_while_it_saves_loses_nothing(store: Path, moment: str) -> None:
    with host_number(0, store) as host:
        sandbox = Api(host).create(workspace=NAME)
        sandbox.sh("echo one > /workspace/a")
        assert Api(host).post(f"{sandbox.path}/workspace/save").json["version"] == 1
        sandbox.sh("head -c 60000000 /dev/urandom > /workspace/b; sha256sum /workspace/b > /workspace/sum")
        ending = threading.Thread(target=_quietly, args=(sandbox.destroy,))
        ending.start()
        spool = host.state / "workspaces"
        packs = store / "workspaces" / "local" / NAME / "packs"
        seen = spool.glob if moment == "spooling" else packs.glob
        count = 0 if moment == "spooling" else 1
        until(lambda: len([*seen("*"), *seen(".*")]) > count)
        host.kill()
        ending.join()
        again(host)
        assert list(spool.glob("*")) + list(spool.glob(".*")) == []
        assert sandbox.view["state"] == "running"
        assert_whole(host)
        assert sandbox.destroy().status == 200
        other = Api(host).create(workspace=NAME)
        assert other.sh("cat /workspace/a; sha256sum -c /workspace/sum") == "one\n/workspace/b: OK"
        assert other.destroy().status == 200
        assert_whole(host)


def test_a_daemon_that_is_killed_while_it_pulls_gives_nobody_half_a_workspace(store: Path) -> None:
    with host_number(0, store) as host:
        sandbox = Api(host).create(workspace=NAME)
        sandbox.sh("head -c 60000000 /dev/urandom > /workspace/b; sha256sum /workspace/b > /workspace/sum")
        assert sandbox.destroy().status == 200
        for after_s in (0.3, 1.0, 2.0):
            known = set(Api(host).ids(state="running,starting,error"))
            making = threading.Thread(target=_quietly, args=(lambda: Api(host).create(workspace=NAME),))
            making.start()
            time.sleep(after_s)
            host.kill()
            making.join()
            again(host)
            for made in set(Api(host).ids(state="running,starting,error")) - known:
                found = Sandbox(Api(host), made, {})
                if found.view["state"] == "running":  # it was whole before the kill
                    assert found.sh("sha256sum -c /workspace/sum") == "/workspace/b: OK"
                assert found.destroy().status == 200
        assert [each["version"] for each in versions(host)] == [1]
        other = Api(host).create(workspace=NAME)
        assert other.sh("sha256sum -c /workspace/sum") == "/workspace/b: OK"
        assert other.destroy().status == 200


def _quietly(act: Any) -> None:
    with contextlib.suppress(Exception):
        act()


def assert_whole(host: Host) -> None:
    """Every version can be read to its end."""
    for each in versions(host):
        assert each["problem"] is None
        reply = Api(host).call("GET", f"/v1/workspaces/{NAME}/versions/{each['version']}/archive")
        assert (reply.status, reply.body[:4]) == (200, b"\x28\xb5\x2f\xfd")
