"""A disk that is full refuses what cannot be written down, loses nothing that was, and heals when there is room again.

Only the ledger is on the small disk: that of the machines is another one, as it may well be on a real host.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import Api, Reply, Sandbox, until
from tests.vm.conftest import OpenOwn

DISK_MB = 16
PAGE = 4096
ROOM_PAGES = (2, 4, 6, 8, 10, 12, 16, 20, 28, 40)  # a change of state takes a handful of pages
FULL = {(503, "ledger_full"), (503, "host_pressure")}


@pytest.fixture
def state(host: Host) -> Iterator[Path]:
    """A state folder on a small disk, but for the machines. It has the snapshots that there are already."""
    with tempfile.TemporaryDirectory(prefix="warren-") as name:
        folder, large = Path(name) / "state", Path(name) / "large"
        folder.mkdir()
        shutil.copytree(host.state / "qemu" / "snapshots", large / "snapshots", copy_function=os.link)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "warren-test", folder], check=True)
        try:
            (folder / "qemu").symlink_to(large)
            yield folder
            left = traces.mentioning(folder / "qemu")
        finally:
            subprocess.run(["umount", folder], check=True)
        assert left == []


def _fill(disk: Path) -> Path:
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while file.write(bytes(PAGE)):
            pass
    assert shutil.disk_usage(disk).free == 0
    return filler


def _is_full(reply: Reply) -> bool:
    """Whether the answer is one of a full disk, which says when to come back."""
    if reply.status < 400:
        return False
    assert reply.refusal in FULL, reply
    assert int(reply.headers["retry-after"]) > 0
    return True


def _mark_until_full(sandbox: Sandbox, marks: list[str]) -> None:
    """Use the sandbox until that cannot be written down any more; `marks` are those that were acknowledged."""

    def mark() -> bool:
        name = f"m{len(marks)}"
        reply = sandbox.put(f"/workspace/{name}", b"x")
        if _is_full(reply):
            return True
        marks.append(name)
        return False

    until(mark)


def test_a_full_disk_refuses_and_heals_and_loses_nothing(open_own: OpenOwn, state: Path) -> None:
    with open_own(POOLD_MIN_DISK_MB="1") as host:
        api = Api(host)
        running, paused, doomed = api.create(), api.create(), api.create()
        paused.sh("echo kept > file")
        paused.pause()
        marks: list[str] = []
        filler = _fill(state)
        _mark_until_full(running, marks)
        for refused in (
            api.post("/v1/sandboxes"),
            api.post(f"{running.path}/pause"),
            api.post(f"{paused.path}/resume"),
            api.post(f"{running.path}/timeout", timeout_sec=100),
            running.execute(["true"]),
            running.destroy(),
        ):
            assert _is_full(refused), refused
        # Looking goes on, and nothing has changed.
        assert (running.view["state"], paused.view["state"]) == ("running", "paused")
        until(lambda: api.call("GET", "/readyz").status == 503)
        os.kill(traces.machines(state)[traces.ledger_machine(state, doomed.id)], signal.SIGKILL)
        until(lambda: "was not cleared away" in host.log())
        assert doomed.view["state"] == "running", "that it failed cannot be written down yet"
        filler.unlink()
        until(lambda: api.call("GET", "/readyz").status == 200)
        until(lambda: doomed.view["state"] == "error")
        _assert_all_is_well(api, running, paused, marks)
        host.kill()
        host.start()
        host.wait_until_warm()
        _assert_all_is_well(api, running, paused, marks)
        verdict = Api(host, as_operator=True).call("GET", "/admin/audit/verify").json
        assert verdict["ok"]
        assert Api(host, as_operator=True).call("GET", "/admin/ledger/check").json["ok"]


def _assert_all_is_well(api: Api, running: Sandbox, paused: Sandbox, marks: list[str]) -> None:
    assert set(marks) <= set(running.sh("ls").split())
    paused.resume()
    assert paused.sh("cat file") == "kept"
    paused.pause()
    running.pause()
    running.resume()
    with api.sandbox() as another:
        assert another.sh("echo alive") == "alive"
    for sandbox in (running, paused):
        numbers = [event["seq"] for event in sandbox.events()]
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_poold_that_is_killed_on_a_full_disk_starts_again_when_there_is_room(open_own: OpenOwn, state: Path) -> None:
    with open_own(POOLD_MIN_DISK_MB="1") as host:
        api = Api(host)
        sandbox = api.create()
        marks: list[str] = []
        filler = _fill(state)
        _mark_until_full(sandbox, marks)
        host.kill()
        filler.unlink()
        host.start()
        host.wait_until_warm()
        assert sandbox.view["state"] == "running"
        assert set(marks) <= set(sandbox.sh("ls").split())


def test_a_disk_that_fills_up_in_the_middle_of_a_creation_leaves_none_half_made(open_own: OpenOwn, state: Path) -> None:
    with open_own(POOLD_MIN_DISK_MB="1") as host:
        api = Api(host)
        refused = 0
        for pages in ROOM_PAGES:
            filler = _fill(state)
            os.truncate(filler, filler.stat().st_size - pages * PAGE)
            reply = api.post("/v1/sandboxes")
            refused += _is_full(reply)
            filler.unlink()
            until(lambda: api.call("GET", "/readyz").status == 200)
            if reply.status == 201:
                assert api.call("DELETE", f"/v1/sandboxes/{reply.json['id']}").status == 200
        assert refused, "the disk was never full in time"
        until(lambda: api.call("GET", "/v1/sandboxes?state=starting").json["sandboxes"] == [])
        with api.sandbox() as another:
            assert another.sh("echo alive") == "alive"


def test_a_disk_that_fills_up_in_the_middle_of_a_pause_or_a_resume_leaves_no_sandbox_stuck(
    open_own: OpenOwn, state: Path
) -> None:
    with open_own(POOLD_MIN_DISK_MB="1") as host:
        api = Api(host)
        sandbox = api.create()
        sandbox.sh("echo kept > /dev/shm/file")
        refused = 0
        for pages in ROOM_PAGES:
            for change, undo in (("pause", sandbox.resume), ("resume", sandbox.pause)):
                undo()
                filler = _fill(state)
                os.truncate(filler, filler.stat().st_size - pages * PAGE)
                refused += _is_full(api.post(f"{sandbox.path}/{change}"))
                filler.unlink()
                until(lambda: api.call("GET", "/readyz").status == 200)
        assert refused, "the disk was never full in time"
        sandbox.resume()
        assert sandbox.sh("cat /dev/shm/file") == "kept"
