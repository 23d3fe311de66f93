"""`pooldctl` against a real poold: a round trip for programs, and a terminal that people drive through tmux."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.host import ROOT, Host
from tests.tmux import LikeATerminal, Pane, open_pane
from tests.vm.client import Api, Sandbox

Ctl = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def environment(host: Host) -> Iterator[dict[str, str]]:
    """As an operator has it: the socket is where this poold was told to have it."""
    variables = Path(f"/proc/{host.process.pid}/environ").read_bytes().split(b"\0")
    told = dict(line.decode().split("=", 1) for line in variables if line.startswith(b"POOLD_"))
    with tempfile.TemporaryDirectory(prefix="warren-ctl-") as home:
        yield {
            **os.environ,
            "POOLD_SOCKET": f"{told['POOLD_RUN_DIR']}/poold.sock",
            "POOLD_STATE_DIR": told["POOLD_STATE_DIR"],
            "POOLD_IMAGES": told["POOLD_IMAGES"],
            "HOME": home,
            "XDG_STATE_HOME": home,
            "PYTHONPATH": str(ROOT),
        }


@pytest.fixture(scope="module")
def ctl(environment: dict[str, str]) -> Ctl:
    def run(*words: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        command = [sys.executable, "-m", "poold.ctl", *words]
        return subprocess.run(command, input=stdin, env=environment, capture_output=True, timeout=180, check=False)

    return run


@pytest.fixture(scope="module")
def ask(ctl: Ctl) -> Callable[..., Any]:
    """What a command that succeeds says in JSON."""

    def ask(*words: str) -> Any:
        ran = ctl(*words, "--json")
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    return ask


@pytest.fixture
def pane(environment: dict[str, str]) -> Iterator[Pane]:
    with open_pane(environment, [sys.executable, "-m", "poold.ctl", "attach"]) as pane:
        yield pane


@pytest.fixture(scope="module")
def box(host: Host) -> Iterator[Sandbox]:
    """A sandbox with an editor in it. Its image is not in the pool: it is booted first, which takes its time."""
    with Api(host, limit_s=240).sandbox(image="python") as sandbox:
        yield sandbox


class TestPrograms:
    def test_a_sandbox_from_its_creation_to_its_end(self, ctl: Ctl, ask: Callable[..., Any]) -> None:
        name = ctl("sandboxes", "create", "--metadata", "job=7").stdout.decode().strip()
        try:
            prefix = name[:10]
            assert name in [row["id"] for row in ask("sandboxes", "ls")["sandboxes"]]
            assert ask("sandboxes", "show", prefix)["metadata"] == {"job": "7"}
            assert ctl("exec", prefix, "--", "sh", "-c", "echo kept > /workspace/file").returncode == 0
            assert ask("sandboxes", "pause", prefix)["sandboxes"][0]["state"] == "paused"
            assert ask("sandboxes", "ls", "--state", "paused")["sandboxes"][0]["id"] == name
            assert ask("sandboxes", "resume", prefix)["sandboxes"][0]["state"] == "running"
            assert ctl("exec", prefix, "--", "cat", "/workspace/file").stdout == b"kept\n"
            kinds = [event["kind"] for event in ask("sandboxes", "events", prefix)["events"]]
            assert len(kinds) >= 3
            assert ask("events", "tail", "--sandbox", prefix, "-n", "1")["events"][-1]["kind"] == kinds[-1]
            assert ask("sandboxes", "timeout", prefix, "600")["rules"]["timeout_sec"] == 600
        finally:
            assert ask("sandboxes", "rm", name)["sandboxes"][0]["state"] == "stopped"
        assert ctl("sandboxes", "pause", name).returncode == 1
        assert ctl("sandboxes", "show", "sb-aaaaaaaaaaaaaaaa").returncode == 4

    def test_the_host_tells_of_itself(self, ask: Callable[..., Any], ctl: Ctl, shared: Sandbox) -> None:
        status = ask("status")
        assert status["sandboxes"]["running"] >= 1
        assert status["slots"]["free"] < status["slots"]["all"]
        assert [share["image"] for share in ask("pool", "ls")["pool"]] == [share["image"] for share in status["pool"]]
        assert shared.id in [row["sandbox"] for row in ask("top", "--once")["machines"]]
        assert ask("ledger", "check")["ok"] is True
        assert ask("audit", "verify")["ok"] is True
        assert isinstance(ask("audit", "ls")["rows"], list)
        for command in ("status", "sandboxes ls", "pool ls", "events tail", "audit ls", "ledger check"):
            ran = ctl(*command.split())
            assert (ran.returncode, ran.stderr) == (0, b"")
            assert ran.stdout.strip()

    def test_the_doctor_finds_a_host_that_works(self, ask: Callable[..., Any]) -> None:
        by_name = {check["name"]: check for check in ask("doctor")["checks"]}
        assert by_name["poold"]["verdict"] == "ok"
        assert by_name["socket"]["verdict"] == "ok"
        assert "poold (process" in by_name["open files"]["detail"]

    def test_output_is_exact_and_the_code_is_the_commands(self, ctl: Ctl, shared: Sandbox) -> None:
        ran = ctl("exec", shared.id, "--", "sh", "-c", "head -c 300000 /dev/urandom | tee /workspace/noise; exit 7")
        assert (ran.returncode, len(ran.stdout)) == (7, 300_000)
        assert hashlib.sha256(ran.stdout).hexdigest() == shared.sh("sha256sum /workspace/noise").split()[0]
        assert ctl("exec", shared.id, "--", "sh", "-c", "kill -9 $$").returncode == 137
        assert ctl("exec", shared.id, "--", "nonesuch").returncode == 125
        assert (
            ctl("exec", shared.id, "-i", "-u", "root", "--", "cat", stdin="grüße".encode()).stdout == "grüße".encode()
        )


class TestTerminal(LikeATerminal):
    def test_a_sandbox_that_is_removed_under_it_is_told(self, pane: Pane, api: Api) -> None:
        with api.sandbox() as doomed:
            pane.open_shell(doomed)
            pane.line("echo here")
            pane.shows(r"^here$")
            assert doomed.destroy().status == 200
            pane.shows(r"^code=1$")
            pane.shows(rf"{doomed.id} is stopped")
            pane.line("stty -a | grep -o ' icanon' && echo sane")
            pane.shows(r"^sane$")
