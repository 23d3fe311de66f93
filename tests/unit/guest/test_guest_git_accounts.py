"""Git with accounts of its own, as in a machine: one that keeps credentials, and one that works."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.gitserver import Asked, GitServer, git
from tests.unit.guest.client import GUEST, LIMIT_S, Client
from tests.unit.guest.gits import AUTHOR, CREDENTIALS, SECRET, clone, some_operation

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can start others' processes")

KEEPER, USER = "nobody", "daemon"

# A guest as it is in a machine, but for the machine.
_GUEST = """
import asyncio, os, socket, sys
from warren_guest import syscalls
from warren_guest.__main__ import serve
from warren_guest.git.places import Places
from warren_guest.guest import Config
from warren_guest.identity import HostMachine
from warren_guest.logs import open_log
folder, user, keeper = sys.argv[1:]
os.umask(0)
syscalls.become_subreaper()
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"{folder}/guest.sock")
places = Places(keeper, f"{folder}/copies", f"{folder}/run", f"{folder}/gitconfig")
config = Config(HostMachine(), user, workspace=f"{folder}/workspace", git=places)
asyncio.run(serve(config, open_log(), listener, lambda _peer: True, lambda: print("ready", flush=True)))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can enter, with a workspace in it that is the user's."""
    folder = Path(tempfile.mkdtemp(prefix="warren-accounts-"))
    folder.chmod(0o755)
    (folder / "workspace").mkdir()
    shutil.chown(folder / "workspace", USER, USER)
    yield folder
    shutil.rmtree(folder)


async def start(place: Path, keeper: str) -> tuple["subprocess.Popen[bytes]", Client]:
    argv = [sys.executable, "-c", _GUEST, str(place), USER, keeper]
    process = subprocess.Popen(argv, cwd=GUEST, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
    return process, Client(str(place / "guest.sock"), process.pid, place / "workspace")


async def stop(process: "subprocess.Popen[bytes]", client: Client) -> None:
    await client.close()
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, LIMIT_S) == 0
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture
async def machine(place: Path) -> AsyncIterator[Client]:
    process, client = await start(place, KEEPER)
    yield client
    log = (await client.call("GET", "/logs")).body.decode()
    await stop(process, client)
    assert "Traceback" not in log, log


# What somebody who is the user could try while the keeper is at work.
_SPY = """
import os, sys
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("cmdline", "environ", *(f"fd/{n}" for n in (0, 9)), "mem", "maps"):
        try:
            fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_NONBLOCK)
            sys.stdout.buffer.write(os.read(fd, 1 << 20))
        except OSError:
            pass
for folder, _, files in os.walk(sys.argv[1]):
    for name in files:
        try:
            sys.stdout.buffer.write(open(f"{folder}/{name}", "rb").read())
        except OSError:
            pass
"""


def spy(place: Path) -> bytes:
    argv = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "/usr/bin/python3", "-c", _SPY]
    return subprocess.run([*argv, str(place)], capture_output=True, check=True).stdout


async def test_the_user_gets_a_work_tree_and_can_learn_nothing_of_the_credentials(
    machine: Client, place: Path, private: GitServer
) -> None:
    private.make("p", {"a": "1\n"})
    private.commit("p", {"a": "2\n"})
    seen = []

    def look(asked: Asked) -> None:
        if asked.user is not None:
            seen.append(spy(place))

    private.on_request = look
    for depth in (0, 1):
        reply = await clone(machine, place / "workspace" / str(depth), private.url("p"), depth=depth, **GIVEN)
        assert reply.status == 200, reply
        assert os.listdir(place / "copies") == []
        owners = {path.owner() for path in (place / "workspace" / str(depth)).rglob("*")}
        assert owners == {USER}
    assert len(seen) >= 4
    assert all(b"git-remote-http" in each for each in seen), "it was seen at work"
    assert not any(SECRET.encode() in each for each in seen)


GIVEN = {"credentials": CREDENTIALS, "branch": "work"}


async def test_a_whole_task_goes_through_both_accounts(machine: Client, place: Path, private: GitServer) -> None:
    private.make("p", {"a": "1\n"})
    workspace = place / "workspace"
    protected = ["main"]
    assert (await clone(machine, workspace, private.url("p"), protected=protected, **GIVEN)).status == 200
    repo = workspace / "repo"
    mark = workspace / "rights"
    script = workspace / "filter"
    script.write_text(f"#!/bin/sh\nid -un >> {mark}\ngrep NoNewPrivs /proc/self/status >> {mark}\ncat\n")
    script.chmod(0o755)
    git("config", "filter.evil.clean", script, cwd=repo)
    (repo / ".git" / "info").mkdir(exist_ok=True)
    (repo / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    (repo / "a").write_text("2\n")
    asked = {"operation": some_operation(), "path": str(repo), "message": "x", "author": AUTHOR}
    commit = (await machine.call("POST", "/git/commit", asked)).json["commit"]
    body = {"operation": some_operation(), "path": str(repo), "url": private.url("p"), "branch": "work"}
    reply = await machine.call("POST", "/git/push", {**body, "credentials": CREDENTIALS, "author": AUTHOR})
    assert reply.json == {"pushed": True, "from": None, "to": commit}
    assert set(mark.read_text().split("\n")) == {USER, "NoNewPrivs:\t1", ""}
    assert os.listdir(place / "copies") == []
    assert git("config", "--file", place / "gitconfig", "--includes", "user.name") == AUTHOR["name"]
    assert (place / "run" / "policy.json").stat().st_uid == 0
    assert (place / "run").stat().st_mode & 0o777 == 0o755


async def test_a_path_that_leads_out_gives_the_user_nothing_that_is_not_its_own(
    machine: Client, place: Path, server: GitServer
) -> None:
    """Whatever is made is made as the user: a link in the way leads only where the user could go anyway."""
    server.make("p", {"a": "1\n"})
    (place / "secret").mkdir(mode=0o700)
    (place / "workspace" / "link").symlink_to(place / "secret")
    reply = await clone(machine, place / "workspace" / "link", server.url("p"))
    assert reply.code == "clone_failed"
    assert os.listdir(place / "secret") == []
    (place / "secret" / "mine").write_text("x")
    reply = await machine.call("GET", f"/archive?path={place}/workspace/link")
    assert reply.code == "not_a_directory"


async def test_an_image_without_the_keeper_is_told_so(place: Path, server: GitServer) -> None:
    server.make("p", {"a": "1\n"})
    process, client = await start(place, "warren-none")
    reply = await clone(client, place / "workspace", server.url("p"))
    assert (reply.status, reply.code) == (409, "not_possible")
    assert "warren-none" in reply.json["error"]["message"]
    await stop(process, client)
