"""A terminal is a shell that outlives its clients."""

import pytest

from tests.vm.client import Sandbox, Terminal, until

CTRL_C = b"\x03"


def _start(terminal: Terminal) -> int:
    """Read up to the prompt: then the shell has taken over its terminal. Gives the shell's number."""
    told = terminal.told()
    assert told["type"] == "start"
    terminal.sees(rb"\$ $")
    pid: int = told["pid"]
    return pid


def _size(terminal: Terminal) -> bytes:
    terminal.types(b"stty size\n")
    return bytes(terminal.sees(rb"(\d+ \d+)\r\n")[1])


def test_what_is_typed_is_shown_and_run_in_a_terminal_of_the_size_that_was_asked_for(shared: Sandbox) -> None:
    with shared.terminal(cols=100, rows=30) as terminal:
        _start(terminal)
        terminal.types(b"stty size; echo $TERM; id -un; pwd\n")
        terminal.sees(rb"stty size; echo \$TERM")
        assert terminal.sees(rb"(\d+ \d+)\r\n")[1] == b"30 100"
        terminal.sees(rb"xterm-256color\r\nuser\r\n/workspace\r\n")
        terminal.types(b"exit\n")
        assert terminal.told()["type"] == "exit"


def test_a_resize_changes_the_size(shared: Sandbox) -> None:
    with shared.terminal() as terminal:
        _start(terminal)
        terminal.says('{"type": "resize", "cols": 132, "rows": 43}')
        until(lambda: _size(terminal) == b"43 132")
        terminal.types(b"exit\n")
        assert terminal.told()["type"] == "exit"


def test_control_c_interrupts_what_runs_and_not_the_shell(shared: Sandbox) -> None:
    with shared.terminal() as terminal:
        _start(terminal)
        terminal.types(b"sleep 4321; echo status=$?\n")
        until(lambda: shared.run(["pgrep", "-x", "-f", "sleep 4321"])["exit_code"] == 0)
        terminal.types(CTRL_C)
        terminal.sees(rb"\^C")
        terminal.types(b"echo six=$((2 * 3))\n")
        terminal.sees(rb"six=6")
        assert shared.run(["pgrep", "-x", "-f", "sleep 4321"])["exit_code"] == 1
        terminal.types(b"exit\n")
        assert terminal.told()["type"] == "exit"


def test_who_leaves_and_comes_back_finds_the_same_shell_and_what_it_printed(shared: Sandbox) -> None:
    with shared.terminal() as terminal:
        pid = _start(terminal)
        terminal.types(b"mine=kept; echo shell=$$\n")
        assert int(terminal.sees(rb"shell=(\d+)")[1]) == pid
    with shared.terminal(pid=pid) as terminal:
        assert terminal.told() == {"type": "start", "pid": pid}
        assert int(terminal.sees(rb"shell=(\d+)")[1]) == pid
        terminal.types(b"echo again=$$ $mine\n")
        assert terminal.sees(rb"again=(\d+) (\w+)").groups() == (str(pid).encode(), b"kept")
        terminal.types(b"exit\n")
        assert terminal.told()["type"] == "exit"


@pytest.mark.parametrize(
    ("typed", "end"),
    [(b"exit 7\n", {"exit_code": 7, "signal": None}), (b"kill -9 $$\n", {"exit_code": None, "signal": "SIGKILL"})],
)
def test_the_end_of_the_shell_is_told_and_closes_the_terminal(
    shared: Sandbox, typed: bytes, end: dict[str, object]
) -> None:
    with shared.terminal() as terminal:
        _start(terminal)
        terminal.types(typed)
        told = terminal.told()
        assert (told["type"], {name: told[name] for name in end}) == ("exit", end)
        assert terminal.closed()[0] == 1000


def test_two_clients_of_one_shell_see_the_same_and_both_see_its_end(shared: Sandbox) -> None:
    with shared.terminal() as first:
        pid = _start(first)
        with shared.terminal(pid=pid) as second:
            assert second.told()["pid"] == pid
            first.types(b"echo from=$((1 + 0))\n")
            second.sees(rb"from=1")
            second.types(b"echo from=$((1 + 1))\n")
            first.sees(rb"from=2")
            second.sees(rb"from=2")
            first.types(b"exit 3\n")
            for terminal in (first, second):
                assert terminal.told()["exit_code"] == 3
                assert terminal.closed()[0] == 1000


def test_a_shell_that_ended_cannot_be_attached_to_twice_as_if_it_lived(shared: Sandbox) -> None:
    with shared.terminal() as terminal:
        pid = _start(terminal)
        terminal.types(b"exit 5\n")
        assert terminal.told()["exit_code"] == 5
    with shared.terminal(pid=pid) as terminal:
        assert terminal.told()["type"] == "start"
        assert terminal.told()["exit_code"] == 5


def test_a_client_that_vanishes_harms_nothing(shared: Sandbox) -> None:
    with shared.terminal() as terminal:
        pid = _start(terminal)
        terminal.types(b"yes\n")
        terminal.sees(rb"(y\r\n){100}")
        terminal.vanish()
    with shared.terminal(pid=pid) as terminal:
        assert terminal.told()["pid"] == pid
        terminal.types(CTRL_C)
        terminal.sees(rb"\^C")
        terminal.types(b"exit\n")
        assert terminal.told()["type"] == "exit"
