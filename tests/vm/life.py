"""What goes on in a sandbox, and has to go on whatever happens to its machine and its host's daemon."""

import time
from dataclasses import dataclass

from tests.vm.client import Sandbox, until

CLOCK_TOLERANCE_S = 0.5
ESCAPE = b"\x1b"
COUNTER = "i=0; while :; do i=$((i+1)); echo $i > count; sleep 0.1; done"
SERVER = "python3 -m http.server --bind 127.0.0.1 8000"
IN_THE_BACKGROUND = "setsid nohup {} > /dev/null 2>&1 < /dev/null &"


@dataclass(frozen=True)
class Life:
    """A counter, a server, a file, a shell with a variable, an editor with unsaved text; all of them in one boot."""

    sandbox: Sandbox
    boot: str
    counter: str
    server: str
    shell: int
    editor: int

    @classmethod
    def begin(cls, sandbox: Sandbox) -> "Life":
        sandbox.sh("echo precious > file; echo volatile > /dev/shm/file")
        sandbox.sh(IN_THE_BACKGROUND.format(f"sh -c '{COUNTER}'"))
        sandbox.sh(IN_THE_BACKGROUND.format(SERVER))
        until(lambda: sandbox.run("curl -s http://127.0.0.1:8000/file")["stdout"] == "precious\n")
        until(lambda: sandbox.run("cat count")["exit_code"] == 0)
        with sandbox.terminal() as terminal:
            shell = terminal.told()["pid"]
            terminal.types(b"mine=kept; cd /tmp; echo ready=$((1 + 1))\n")
            terminal.sees(rb"ready=2")
        with sandbox.terminal() as terminal:
            editor = terminal.told()["pid"]
            terminal.types(b"exec vim -u NONE -n text\n")
            terminal.sees(rb"~")
            terminal.types(b"iunsaved")
            terminal.sees(rb"unsaved")
        return cls(
            sandbox,
            boot=sandbox.sh("cat /proc/sys/kernel/random/boot_id"),
            counter=_pids(sandbox, "sh -c i=0"),
            server=_pids(sandbox, SERVER),
            shell=shell,
            editor=editor,
        )

    def assert_goes_on(self) -> None:
        sandbox = self.sandbox
        assert sandbox.sh("cat /proc/sys/kernel/random/boot_id") == self.boot
        assert sandbox.sh("cat file /dev/shm/file") == "precious\nvolatile"
        assert (_pids(sandbox, "sh -c i=0"), _pids(sandbox, SERVER)) == (self.counter, self.server)
        before = self.count()
        until(lambda: self.count() > before)
        assert sandbox.sh("curl -s http://127.0.0.1:8000/file") == "precious"
        self._assert_terminals_go_on()

    def count(self) -> int:
        """How far the counter is; a file that is just being written is read again."""
        return int(until(lambda: self.sandbox.run(["cat", "count"])["stdout"]))

    def _assert_terminals_go_on(self) -> None:
        with self.sandbox.terminal(pid=self.shell) as terminal:
            assert terminal.told() == {"type": "start", "pid": self.shell}
            terminal.types(b"echo here=$$ $mine $PWD\n")
            assert terminal.sees(rb"here=(\d+) (\S+) (\S+)").groups() == (str(self.shell).encode(), b"kept", b"/tmp")
        before = self._text()
        with self.sandbox.terminal(pid=self.editor) as terminal:
            assert terminal.told() == {"type": "start", "pid": self.editor}
            terminal.types(b"!" + ESCAPE + b":w\r" + b"A")
            until(lambda: self._text() == (before or "unsaved") + "!")

    def _text(self) -> str:
        """What the editor has saved."""
        text: str = self.sandbox.run(["cat", "text"])["stdout"].strip()
        return text


def assert_same_time(sandbox: Sandbox) -> None:
    """The guest's clock is the host's."""
    before = time.time()
    seen = sandbox.python("import time; print(time.time())")
    assert before - CLOCK_TOLERANCE_S < seen < time.time() + CLOCK_TOLERANCE_S


def _pids(sandbox: Sandbox, line: str) -> str:
    return sandbox.sh(["pgrep", "-o", "-f", f"^{line}"])
