"""`pooldctl attach` and which shell it opens: the one that was left, another by its number, or a new one."""

import pytest

from tests.unit.ctl.ctl_terminal import DETACH, ONE, Attach, Guests, next_of, until


def test_who_leaves_finds_the_same_shell_again(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = next_of(guests)
        guest.starts(pid=78)
        until(terminal.is_raw)
        terminal.types(b"abc" + DETACH + b"not sent")
        assert guest.hears() == b"abc"
        assert guest.is_left()
        assert terminal.ends() == 0
        assert b"come back with: pooldctl attach " + ONE.encode() in terminal.shown
    with attach() as terminal:
        guest = next_of(guests)
        assert guest.query == {"pid": "78", "after": "0"}
        guest.starts(pid=78)
        # A program that fills the screen must draw it anew: a change of the size makes it.
        assert guest.hears() == {"type": "resize", "cols": 100, "rows": 29}
        assert guest.hears() == {"type": "resize", "cols": 100, "rows": 30}
        # What the terminal was asked then must not be asked again: its answer would be typed into the shell.
        guest.prints(b"old\x1b[6")
        guest.prints(b"n\x1b[c screen")
        terminal.sees(rb"old screen")
        terminal.types(b"x")
        assert guest.hears() == b"x"
        guest.prints(b"now\x1b[6n.")
        terminal.sees(rb"now\x1b\[6n\.")
        guest.tells(type="exit", exit_code=0, signal=None, duration_ms=5)
        guest.closes()
        assert terminal.ends() == 0
    with attach() as terminal:  # that one has ended: nothing is left to come back to
        guest = next_of(guests)
        assert "pid" not in guest.query
        guest.starts()
        terminal.types(DETACH)
        assert terminal.ends() == 0


@pytest.mark.parametrize("words", [("--new",), ("--user", "root"), ("--cmd", "htop -d 5")])
def test_a_new_shell_can_be_asked_for(guests: Guests, attach: Attach, words: tuple[str, ...]) -> None:
    for options in ((), words):
        with attach(*options) as terminal:
            guest = next_of(guests)
            guest.starts()
            terminal.sees(rb"in process")
            terminal.types(DETACH)
            assert terminal.ends() == 0
    wanted = {"user": "root"} if "--user" in words else {"cmd": "htop -d 5"} if "--cmd" in words else {}
    assert guest.query == {"cols": "100", "rows": "30", **wanted}


def test_a_shell_that_ended_while_nobody_looked_is_replaced(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        next_of(guests).starts(pid=78)
        terminal.types(DETACH)
        assert terminal.ends() == 0
    with attach() as terminal:
        guest = next_of(guests)
        guest.tells(type="error", error={"code": "not_found", "message": "no process 78"})
        guest.closes(4400)
        guest = next_of(guests)
        assert "pid" not in guest.query
        guest.starts(pid=90)
        terminal.sees(rb"in process 90")
        terminal.types(DETACH)
        assert terminal.ends() == 0


def test_a_shell_by_its_number(guests: Guests, attach: Attach) -> None:
    with attach("--pid", "12") as terminal:
        guest = next_of(guests)
        assert guest.query["pid"] == "12"
        guest.tells(type="error", error={"code": "not_found", "message": "no process 12"})
        guest.closes(4400)
        assert terminal.ends() == 4
        assert b"not_found: no process 12" in terminal.shown
