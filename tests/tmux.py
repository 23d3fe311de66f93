"""A terminal that people drive through tmux, and what each way to attach to a sandbox has to show there."""

import contextlib
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

DETACH = "C-]"
HOST_PROMPT = "host%"
COLUMNS, ROWS = 100, 30
LIMIT_S = 180.0


class Box(Protocol):
    """A sandbox with an editor in it, and another way into it than a terminal."""

    @property
    def id(self) -> str: ...

    def run(self, cmd: str | list[str]) -> dict[str, Any]: ...

    def sh(self, cmd: str) -> str: ...


def until(is_so: Callable[[], bool]) -> None:
    """Wait for a state, with a limit."""
    give_up = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < give_up, f"it did not come about within {LIMIT_S:g} s"
        time.sleep(0.02)


def numbers(screen: str) -> list[str]:
    """The lines that are a number, as an editor shows them."""
    return re.findall(r"^\d+$", screen, re.MULTILINE)


class Pane:
    """A window of tmux with a shell of the host in it."""

    def __init__(self, server: Path, environment: Mapping[str, str], attach: Sequence[str]) -> None:
        self._server = str(server)
        self._environment = {**environment, "TERM": "xterm-256color"}
        self._attach = attach

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

    def attach(self, box: Box, *options: str) -> None:
        self.line(f"clear; {shlex.join([*self._attach, box.id, *options])}; echo code=$?")

    def open_shell(self, box: Box) -> None:
        """A new shell, ready to be typed into."""
        self.attach(box, "--new")
        self.shows(r"in process \d+ of sb-[\s\S]*\$$")

    def leave(self) -> None:
        self.keys(DETACH)
        self.shows(r"^code=0$")


@contextlib.contextmanager
def open_pane(environment: Mapping[str, str], attach: Sequence[str]) -> Iterator[Pane]:
    """A window in which a person attaches by the command `attach`."""
    assert shutil.which("tmux") is not None, "tmux is not installed"
    with tempfile.TemporaryDirectory(prefix="warren-tmux-") as folder:
        pane = Pane(Path(folder) / "server", environment, attach)
        shell = f"PS1={HOST_PROMPT} exec bash --norc --noprofile"
        pane.tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), shell)
        try:
            pane.shows(f"^{HOST_PROMPT}$")
            yield pane
        finally:
            pane.tmux("kill-server")


class LikeATerminal:
    """The tests of one way to attach: whoever inherits them has the fixtures `pane` and `box`."""

    def test_it_looks_like_a_shell_and_exits_like_one(self, pane: Pane, box: Box) -> None:
        pane.open_shell(box)
        pane.line("stty size; id -un; echo $((6 * 7))")
        pane.shows(rf"^{ROWS} {COLUMNS}\nuser\n42$")
        pane.line("exit 7")
        pane.shows(r"^code=7$")
        pane.line("stty -a | grep -o ' icanon' && echo sane")
        pane.shows(r"^sane$")

    def test_control_c_ends_what_runs_and_nothing_else(self, pane: Pane, box: Box) -> None:
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

    def test_an_editor_fills_the_screen_and_follows_its_size(self, pane: Pane, box: Box) -> None:
        box.sh("seq 1 100 > /workspace/numbers; rm -f /workspace/.numbers.sw?")
        pane.open_shell(box)
        pane.line("vi /workspace/numbers")
        screen = pane.shows(rf'^{ROWS - 1}\n.*"/workspace/numbers"')
        assert screen.splitlines()[0] == "1"
        pane.resize(60, 15)
        until(lambda: pane.screen.splitlines()[:14] == [str(number) for number in range(1, 15)])
        assert len(pane.screen.splitlines()) <= 15  # the last line is the editor's own, and may be empty
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

    def test_top_is_drawn_and_quit(self, pane: Pane, box: Box) -> None:
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

    def test_who_leaves_finds_the_screen_again(self, pane: Pane, box: Box) -> None:
        box.sh("seq 1 100 > /workspace/again; rm -f /workspace/.again.sw?")
        pane.open_shell(box)
        pane.line("mine=kept; vi /workspace/again")
        pane.shows(rf"^{ROWS - 1}$")
        pane.keys("G")
        before = pane.shows(rf"^{100 - ROWS + 2}\n(.*\n)*100$")  # the last row is the editor's own
        pane.leave()
        assert HOST_PROMPT in pane.screen  # our own screen is back, with the line that started it
        assert not re.search(r"^99$", pane.screen, re.MULTILINE)
        pane.attach(box)
        until(lambda: numbers(pane.screen) == numbers(before))
        pane.line(":q")
        pane.shows(r"\$$")
        pane.line("echo mine=$mine")
        pane.shows(r"^mine=kept$")
        # What the editor had asked the terminal was not asked again, or its answer would stand in the prompt.
        assert not re.search(r"\$ .*\[[0-9;?>]*[Rc]", pane.screen)
        pane.line("exit 0")
        pane.shows(r"^code=0$")
