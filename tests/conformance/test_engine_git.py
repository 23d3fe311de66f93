"""Git in a real machine: the keeper's account, the wrapper in git's place, and a server in the machine itself."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from poold.commands import Ended, Output, run
from poold.engines import Machine
from poold.errors import GuestError
from poold.link import Guest
from tests import gitserver
from tests.conformance.bench import QEMU, Bench

# An emulated machine on a busy host takes its time to start a program, and a clone is a dozen of them.
LIMIT_S = 120.0
SECRET = "pa55-w0rd-that-nobody-sees"
CREDENTIALS = {"username": "bot", "password": SECRET}
AUTHOR = {"name": "Warren", "email": "agent@example.org"}
URL = "http://127.0.0.1:8000/p.git"
REPO = "/workspace/repo"

_SERVER = """
import pathlib, subprocess, threading
from tests.gitserver import serve
folder = pathlib.Path("/root/server")
folder.mkdir()
# Whoever works in the machine looks around while the keeper is at work.
spy = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/fd/9 2>/dev/null; true"
def look(asked):
    if asked.user:
        found = subprocess.run(["setpriv", "--reuid=1000", "--clear-groups", "timeout", "20", "sh", "-c", spy],
                               capture_output=True).stdout
        (folder / "seen").open("ab").write(found)
with serve(folder, users={"bot": pathlib.Path("/root/password").read_text()}, port=8000) as server:
    server.make("p", {"a": "1\\n"})
    server.on_request = look
    (folder / "ready").touch()
    threading.Event().wait()
"""


@pytest.fixture
def engine_name() -> str:
    """Only a machine has the accounts and the wrapper of an image."""
    return QEMU


async def sh(guest: Guest, bench: Bench, script: str, user: str = "user") -> tuple[int | None, str]:
    said = b""
    async for event in run(guest, replace(bench.script(script), user=user)):
        match event:
            case Output(data=data):
                said += data
            case Ended(exit_code=exit_code):
                return exit_code, said.decode()
    raise AssertionError("a command's stream has no end")


async def put(guest: Guest, path: str, text: str) -> None:
    content = base64.b64encode(text.encode()).decode()
    await guest.call("POST", "/files/write", {"path": path, "content_base64": content, "user": "root"})


@contextlib.asynccontextmanager
async def served(bench: Bench) -> AsyncIterator[tuple[Machine, Guest]]:
    """A machine with a git server of its own, which only root can look into."""
    async with bench.machine() as machine, bench.guest(machine) as guest:
        await put(guest, "/root/tests/gitserver.py", Path(gitserver.__file__).read_text())
        await put(guest, "/root/server.py", _SERVER)
        await put(guest, "/root/password", SECRET)
        program = {"cmd": "python3", "args": ["-c", f"import sys; sys.path.insert(0, '/root'); {RUN}"]}
        await guest.call("POST", "/processes?detach=1", {**program, "user": "root", "cwd": "/root"})
        async with asyncio.timeout(LIMIT_S):
            while (await sh(guest, bench, "test -e /root/server/ready", "root"))[0] != 0:
                await asyncio.sleep(0.2)
        yield machine, guest


RUN = "exec(open('/root/server.py').read())"


async def test_a_whole_task_with_credentials_that_nobody_sees(bench: Bench) -> None:
    async with served(bench) as (_machine, guest):
        body = {"url": URL, "path": REPO, "branch": "work", "author": AUTHOR, "credentials": CREDENTIALS}
        cloned = await guest.call(
            "POST", "/git/clone", {"operation": "c", "protected": ["main"], **body}, limit_s=LIMIT_S
        )
        assert cloned["branch"] == "work"
        assert await sh(guest, bench, f"stat -c %U {REPO}/a {REPO}/.git/config") == (0, "user\nuser\n")
        assert await sh(guest, bench, f"cd {REPO} && echo 2 > a && git commit -qam x && git log -1 --format=%ae") == (
            0,
            f"{AUTHOR['email']}\n",
        )
        # The wrapper is root's, and the rails are on.
        assert await sh(guest, bench, "stat -c %U /usr/bin/git && head -c 9 /usr/bin/git") == (0, "root\n#!/bin/sh")
        code, said = await sh(guest, bench, f"cd {REPO} && git push -f origin work 2>&1")
        assert (code, "rewrite history" in said) == (1, True), said
        code, said = await sh(guest, bench, f"cd {REPO} && git push origin work:main 2>&1")
        assert (code, "main is protected" in said) == (1, True), said
        code, said = await sh(guest, bench, f"cd {REPO} && git push origin work 2>&1")
        assert (code, "no agent is running" in said) == (1, True), said
        # Around the wrapper there is git, and no credentials.
        code, said = await sh(guest, bench, f"cd {REPO} && /usr/lib/warren/git push origin work 2>&1 </dev/null")
        assert code != 0, said
        pushed = await guest.call("POST", "/git/push", {"operation": "p", **body}, limit_s=LIMIT_S)
        assert pushed["to"] == (await sh(guest, bench, f"git -C {REPO} rev-parse HEAD"))[1].strip()
        assert await sh(guest, bench, "ls /var/lib/warren-git") == (0, "")
        seen = (await sh(guest, bench, "cat /root/server/seen | tr '\\0' '\\n'", "root"))[1]
        assert "git-remote-http" in seen
        assert SECRET not in seen
        assert (
            SECRET
            not in (await sh(guest, bench, "grep -r pa55 /workspace /home /run /etc /tmp 2>/dev/null", "root"))[1]
        )


async def test_a_sandbox_without_a_task_has_its_own_git(bench: Bench) -> None:
    async with served(bench) as (_machine, guest):
        own = URL.replace("://", f"://bot:{SECRET}@")
        script = f"git clone -q {own} /tmp/own && cd /tmp/own && git push -q origin HEAD:own"
        assert await sh(guest, bench, script) == (0, "")
        with pytest.raises(GuestError, match="the server wants credentials"):
            await guest.call("POST", "/git/clone", {"operation": "x", "url": URL, "path": REPO}, limit_s=LIMIT_S)
