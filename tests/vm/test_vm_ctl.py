"""`pooldctl` against a real poold: a round trip for programs, and a terminal that people drive through tmux."""

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.host import ROOT, Host
from tests.vm.client import LIMIT_S, Api, Sandbox, until

DETACH = "C-]"
HOST_PROMPT = "host%"
COLUMNS, ROWS = 100, 30
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


class Pane:
    """A window of tmux with a shell of the host in it."""

    def __init__(self, server: Path, environment: dict[str, str]) -> None:
        self._server = str(server)
        self._environment = {**environment, "TERM": "xterm-256color"}

    def tmux(self, *words: str) -> str:
        ran = subprocess.run(
            ["tmux", "-S", self._server, "-f", "/dev/null", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        return ran.stdout

    @contextlib.contextmanager
    def opened(self) -> Iterator["Pane"]:
        self.tmux(
            "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), f"PS1={HOST_PROMPT} exec bash --norc --noprofile"
        )
        try:
            self.shows(f"^{HOST_PROMPT}$")
            yield self
        finally:
            self.tmux("kill-server")

    @property
    def screen(self) -> str:
        return self.tmux("capture-pane", "-p").rstrip("\n")

    def shows(self, pattern: str) -> str:
        """Wait until the screen, as a person sees it, has `pattern`."""
        seen = [""]

        def is_there() -> bool:
            seen[0] = self.screen
            return re.search(pattern, seen[0], re.MULTILINE) is not None

        try:
            until(is_there)
        except AssertionError:
            raise AssertionError(f"{pattern!r} is not on the screen:\n{seen[0]}") from None
        return seen[0]

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def line(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)
        self.keys("Enter")

    def resize(self, columns: int, rows: int) -> None:
        self.tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def attach(self, sandbox: Sandbox, *options: str) -> None:
        command = [sys.executable, "-m", "poold.ctl", "attach", sandbox.id, *options]
        self.line(f"clear; {shlex.join(command)}; echo code=$?")

    def open_shell(self, sandbox: Sandbox) -> None:
        """A new shell, ready to be typed into."""
        self.attach(sandbox, "--new")
        self.shows(r"in process \d+ of sb-[\s\S]*\$$")

    def leave(self) -> None:
        self.keys(DETACH)
        self.shows(r"^code=0$")


@pytest.fixture
def pane(environment: dict[str, str]) -> Iterator[Pane]:
    assert shutil.which("tmux") is not None, "tmux is not installed"
    with (
        tempfile.TemporaryDirectory(prefix="warren-tmux-") as folder,
        Pane(Path(folder) / "server", environment).opened() as pane,
    ):
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


class TestTerminal:
    def test_it_looks_like_a_shell_and_exits_like_one(self, pane: Pane, box: Sandbox) -> None:
        pane.open_shell(box)
        pane.line("stty size; id -un; echo $((6 * 7))")
        pane.shows(rf"^{ROWS} {COLUMNS}\nuser\n42$")
        pane.line("exit 7")
        pane.shows(r"^code=7$")
        pane.line("stty -a | grep -o ' icanon' && echo sane")
        pane.shows(r"^sane$")

    def test_control_c_ends_what_runs_and_nothing_else(self, pane: Pane, box: Sandbox) -> None:
        pane.open_shell(box)
        pane.line("sleep 4321; echo status=$?")
        until(lambda: box.run(["pgrep", "-x", "-f", "sleep 4321"])["exit_code"] == 0)
        pane.keys("C-c")
        pane.shows(r"status=\$\?\n(?:\^C)?\n?\S+:/workspace\$$")  # "^C" itself is flushed away if the shell is quick
        pane.line("echo still=$((1 + 1))")
        pane.shows(r"^still=2$")
        assert box.run(["pgrep", "-x", "-f", "sleep 4321"])["exit_code"] == 1
        pane.line("exit 0")
        pane.shows(r"^code=0$")

    def test_an_editor_fills_the_screen_and_follows_its_size(self, pane: Pane, box: Sandbox) -> None:
        box.sh("seq 1 100 > /workspace/numbers; rm -f /workspace/.numbers.sw?")
        pane.open_shell(box)
        pane.line("vi /workspace/numbers")
        screen = pane.shows(rf'^{ROWS - 1}\n.*"/workspace/numbers"')
        assert screen.splitlines()[0] == "1"
        pane.resize(60, 15)
        pane.shows(r"\A1\n(?:\d+\n){13}\S*")
        until(lambda: "15" not in pane.screen.splitlines()[:14])
        pane.resize(COLUMNS, ROWS)
        pane.shows(r"^27$")
        pane.keys("O")
        pane.line("written by hand")
        pane.keys("Escape")
        pane.line(":wq")
        pane.shows(r"\$$")
        assert box.sh("head -n 1 /workspace/numbers") == "written by hand"
        pane.line("exit 0")
        pane.shows(r"^code=0$")

    def test_top_is_drawn_and_quit(self, pane: Pane, box: Sandbox) -> None:
        pane.open_shell(box)
        pane.line("top -d 1")
        pane.shows(r"PID USER .* COMMAND")
        pane.resize(90, 20)
        pane.shows(r"PID USER .* COMMAND")
        pane.keys("q")
        pane.shows(r"\$$")  # it forgets what was typed before its end
        pane.line("echo size=$(stty size)")
        pane.shows(r"^size=20 90$")
        pane.line("exit 0")
        pane.shows(r"^code=0$")

    def test_who_leaves_finds_the_screen_again(self, pane: Pane, box: Sandbox) -> None:
        box.sh("seq 1 100 > /workspace/again; rm -f /workspace/.again.sw?")
        pane.open_shell(box)
        pane.line("mine=kept; vi /workspace/again")
        pane.shows(rf"^{ROWS - 1}$")
        pane.keys("G")
        before = pane.shows(r"^100$")
        pane.leave()
        assert HOST_PROMPT in pane.screen  # our own screen is back, with the line that started it
        assert not re.search(r"^99$", pane.screen, re.MULTILINE)
        pane.attach(box)
        after = pane.shows(r"^100$")
        assert re.findall(r"^\d+$", after, re.MULTILINE) == re.findall(r"^\d+$", before, re.MULTILINE)
        pane.line(":q")
        pane.shows(r"\$$")
        pane.line("echo mine=$mine")
        pane.shows(r"^mine=kept$")
        # What the editor had asked the terminal was not asked again, or its answer would stand in the prompt.
        assert not re.search(r"\$ .*\[[0-9;?>]*[Rc]", pane.screen)
        pane.line("exit 0")
        pane.shows(r"^code=0$")

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
