"""A sandbox goes into the object store and comes back on another host, with all that ran in it."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.bench.host import Host, open_host
from tests.vm import traces
from tests.vm.client import Api, Reply, Sandbox, until
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


# Files alone.

PATIENCE_S = 300.0  # with a host that boots its first machine of a shape for it, while others do the same

# Everything of the root but what a start makes: names, modes, owners, links, sizes, times; and what people's files say.
LOOK = """
import hashlib, json, os
told = {}
OUT = ("/proc", "/sys", "/dev", "/run", "/var/lib/warren")
READ = ("/etc", "/home", "/root", "/workspace", "/usr/local", "/tmp")
for place, folders, files in os.walk("/"):
    folders[:] = [n for n in folders if os.path.join(place, n) not in OUT]
    for name in folders + files:
        path = os.path.join(place, name)
        facts = os.lstat(path)
        is_file = os.path.isfile(path) and not os.path.islink(path)
        told[path] = [facts.st_mode, facts.st_uid, facts.st_gid]
        if is_file:
            told[path] += [facts.st_nlink, facts.st_size, int(facts.st_mtime)]
            if facts.st_size < 1 << 16 and path.startswith(READ):
                told[path].append(open(path, "rb").read().hex())
        elif os.path.islink(path):
            told[path].append(os.readlink(path))
print(json.dumps(hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()))
"""


def change(sandbox: Sandbox) -> None:
    """What people do to a system: files everywhere, accounts, programs, links, and things that are gone."""
    root = {"user": "root"}
    sandbox.sh("echo mine > /workspace/file; mkdir -p ~/.config; echo set > ~/.config/it; echo t > /tmp/left", **root)
    sandbox.sh("useradd -m -u 1234 ann 2>/dev/null || echo 'ann:x:1234:1234::/home/ann:/bin/sh' >> /etc/passwd", **root)
    sandbox.sh(
        "mkdir -p /home/ann && echo hers > /home/ann/f && chown -R 1234:1234 /home/ann && chmod 700 /home/ann", **root
    )
    sandbox.sh("printf '#!/bin/sh\necho installed\n' > /usr/local/bin/tool && chmod 4755 /usr/local/bin/tool", **root)
    sandbox.sh("ln /usr/local/bin/tool /usr/local/bin/same; ln -s /etc/passwd /opt/link; mkfifo /srv/pipe", **root)
    sandbox.sh("rm -rf /usr/share/doc; rm -f /etc/issue; rm -rf /var/cache/apt; mkdir /var/cache/apt", **root)
    sandbox.sh("truncate -s 50M /workspace/holes; echo end >> /workspace/holes", **root)


def asleep(sandbox: Sandbox) -> Reply:
    return sandbox.api.post(f"{sandbox.path}/hibernate", kind="files")


def test_files_alone_come_back_on_another_host_without_what_ran(store: Path) -> None:
    with host_number(0, store) as first:
        sandbox = Api(first, limit_s=PATIENCE_S).create(env={"TOKEN": "s3cret"}, public_ports=[8000])
        begin(sandbox)
        change(sandbox)
        ends = "trap 'echo ended > /workspace/ended; exit' TERM; while :; do sleep 0.1; done"
        sandbox.sh(f'setsid nohup sh -c "{ends}" > /dev/null 2>&1 < /dev/null & sleep 1')
        machine = traces.ledger_machine(first.state, sandbox.id)
        boot_id = sandbox.sh("cat /proc/sys/kernel/random/boot_id")
        identity = sandbox.sh("cat /etc/machine-id /etc/hostname")
        reply = asleep(sandbox)
        assert (reply.status, reply.json["state"]) == (200, "hibernated"), reply
        assert (reply.json["hibernated"]["kind"], reply.json["hibernated"]["bytes"] < 4 << 20) == ("files", True)
        assert machine not in traces.folders(first.state) | traces.machines(first.state).keys()
        sandbox.resume()
        assert sandbox.sh("cat /workspace/ended") == "ended"
        files = sandbox.python(LOOK, user="root")
        assert asleep(sandbox).status == 200
        assert not list(store.glob("goldens/*"))
    (manifest,) = (path.relative_to(store) for path in store.glob("hibernated/*/*/manifest"))
    with host_number(1, store) as second:
        reply = Api(second, as_operator=True).post("/admin/hibernated", manifest=str(manifest))
        assert reply.status == 200, reply
        again = Sandbox(Api(second, limit_s=PATIENCE_S), sandbox.id, reply.json)
        again.resume()
        assert again.python(LOOK, user="root") == files
        assert again.sh("cat /proc/sys/kernel/random/boot_id") != boot_id
        assert again.sh("cat /etc/machine-id /etc/hostname; echo $TOKEN") == f"{identity}\ns3cret"
        assert again.sh(
            "tool; cat /home/ann/f; ls /usr/share/doc /etc/issue 2>/dev/null | wc -l", user="root"
        ).split() == ["installed", "hers", "0"]
        assert "count.py" not in again.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", user="root")
        assert again.view["public_ports"] == [8000]
        assert again.destroy().status == 200
        until(lambda: not list(store.glob("hibernated/*/*/*")))


def test_a_poold_that_is_killed_while_files_go_there_and_back_loses_none(store: Path) -> None:
    with host_number(0, store) as host:
        sandbox = Api(host, limit_s=PATIENCE_S).create()
        sandbox.sh("head -c 20000000 /dev/urandom > /workspace/file; echo kept > /etc/kept", user="root")
        known = sandbox.sh("sha256sum /workspace/file /etc/kept")
        for after_s in (0.3, 1.0, 1.7):
            for word in ("hibernate", "resume"):
                asked = {"kind": "files"} if word == "hibernate" else {}
                with ThreadPoolExecutor() as pool:
                    asking = pool.submit(sandbox.api.post, f"{sandbox.path}/{word}", **asked)
                    time.sleep(after_s)
                    host.kill()
                    asking.exception()
                host.start()
                host.wait_until_serving()
                state = sandbox.view["state"]
                assert state in ("running", "hibernated")
                if state == "hibernated" and word == "resume":
                    sandbox.resume()
                elif state == "running" and word == "hibernate":
                    assert asleep(sandbox).status == 200
            assert sandbox.sh("sha256sum /workspace/file /etc/kept") == known
        assert sandbox.destroy().status == 200
