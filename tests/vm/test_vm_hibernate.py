"""A sandbox goes into the object store and comes back on another host, with all that ran in it."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.host import Host, open_host
from tests.vm import traces
from tests.vm.client import Api, Sandbox, until
from tests.vm.conftest import BASE_UID, IMAGE, SLOTS

COUNT = "import time\nfor i in range(10**9):\n open('/dev/shm/count', 'a').write(f'{i}\\n'); time.sleep(0.02)"
# One connection for all of its life, with a transaction open most of the time.
WRITE = """
import sqlite3, time
db = sqlite3.connect("/workspace/rows.db", isolation_level=None)
db.execute("CREATE TABLE rows (n INTEGER PRIMARY KEY)")
for n in range(10**9):
    db.execute("BEGIN")
    db.execute("INSERT INTO rows VALUES (?)", (n,))
    time.sleep(0.02)
    db.execute("COMMIT")
"""
TESTS = """
import time, unittest
class Slow(unittest.TestCase):
    pass
for n in range(60):
    setattr(Slow, f"test_{n:02}", lambda self: time.sleep(0.1))
unittest.main(verbosity=2)
"""


@pytest.fixture
def store() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="warren-store-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def host_number(number: int, store: Path) -> Iterator[Host]:
    """A poold with folders of its own, that shares the store and nothing else with others."""
    base_uid = str(BASE_UID + SLOTS + 10 * number)
    variables = {"POOLD_DEFAULT_IMAGE": IMAGE, "POOLD_SLOTS": "4", "POOLD_BASE_UID": base_uid}
    with open_host(pool="", POOLD_STORE=str(store), **variables) as host:
        host.wait_until_serving()
        yield host


def begin(sandbox: Sandbox) -> None:
    """A counter, a database that is being written to, and a test suite, all under way."""
    for name, program in (("count", COUNT), ("write", WRITE), ("suite", TESTS)):
        assert sandbox.put(f"/workspace/{name}.py", program.encode()).status == 200
        sandbox.sh(f"cd /workspace && setsid nohup python3 {name}.py > {name}.log 2>&1 < /dev/null & sleep 0.1")
    until(lambda: int(sandbox.sh("wc -l < /dev/shm/count || echo 0")) > 20)
    until(lambda: int(sandbox.sh("grep -c ok /workspace/suite.log || true")) > 3)


def counted(sandbox: Sandbox) -> list[int]:
    return [int(line) for line in sandbox.sh("cat /dev/shm/count").splitlines()]


def assert_goes_on(sandbox: Sandbox, before: int) -> None:
    until(lambda: len(counted(sandbox)) > before + 20)
    numbers = counted(sandbox)
    assert numbers == list(range(len(numbers)))
    look = (
        "import sqlite3, json; db = sqlite3.connect('file:/workspace/rows.db?mode=ro', uri=True);"
        "print(json.dumps([db.execute('PRAGMA integrity_check').fetchone()[0],"
        " db.execute('SELECT count(*), max(n) FROM rows').fetchone()]))"
    )
    state, (rows, last) = sandbox.python(look)
    assert (state, rows) == ("ok", last + 1)
    until(lambda: "OK" in sandbox.sh("tail -n 1 /workspace/suite.log"))
    assert "Ran 60 tests" in sandbox.sh("cat /workspace/suite.log")
    until(lambda: sandbox.python(look)[1][0] > rows)


def test_all_that_runs_goes_on_after_hibernation_on_another_host(store: Path) -> None:
    with host_number(0, store) as first:
        sandbox = Api(first).create()
        machine = traces.ledger_machine(first.state, sandbox.id)
        begin(sandbox)
        boot_id = sandbox.sh("cat /proc/sys/kernel/random/boot_id")
        before = len(counted(sandbox))
        view = sandbox._changed("hibernate", "hibernated")
        assert view["hibernated"]["bytes"] < 200 << 20
        assert machine not in traces.folders(first.state) | traces.machines(first.state).keys()
    (manifest,) = (path.relative_to(store) for path in store.glob("hibernated/*/*/manifest"))
    with host_number(1, store) as second:
        reply = Api(second, as_operator=True).post("/admin/hibernated", manifest=str(manifest))
        assert (reply.status, reply.json["state"]) == (200, "hibernated"), reply
        again = Sandbox(Api(second), sandbox.id, reply.json)
        again.resume()
        assert again.sh("cat /proc/sys/kernel/random/boot_id") == boot_id
        assert abs(float(again.sh("date +%s.%N")) - time.time()) < 2
        assert_goes_on(again, before)
        assert again.pause()["state"] == "paused"
        again.resume()
        assert again.destroy().status == 200
        until(lambda: not list(store.glob("hibernated/*/*/*")))


def test_a_sandbox_hibernates_and_comes_back_on_its_own_host_without_its_golden_memory(store: Path) -> None:
    """Also if the daemon was killed in between, and what it kept of golden memories and snapshots is gone."""
    with host_number(0, store) as host:
        sandbox = Api(host).create()
        sandbox.sh("echo here > /workspace/file; echo word > /dev/shm/word")
        sandbox._changed("hibernate", "hibernated")
        host.kill()
        shutil.rmtree(host.state / "goldens")
        shutil.rmtree(host.state / "qemu" / "snapshots")
        host.start()
        host.wait_until_serving()
        sandbox.resume()
        assert sandbox.sh("cat /workspace/file /dev/shm/word") == "here\nword"
        assert sandbox.destroy().status == 200
