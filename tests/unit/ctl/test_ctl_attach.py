"""`pooldctl attach` as people have it: a real process on a real terminal, against a WebSocket that plays poold."""

import signal
import threading

import pytest

from tests.unit.ctl.conftest import Ctl
from tests.unit.ctl.ctl_terminal import DETACH, ONE, Attach, Guests, next_of, until


def test_bytes_go_both_ways_and_the_exit_code_is_the_shells(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = next_of(guests)
        assert guest.query == {"cols": "100", "rows": "30"}
        guest.starts()
        terminal.sees(rb"in process 77 of sb-one\w+; ctrl-\] leaves it running\r\n")
        guest.prints(b"\xff\xfe\x1b[1mprompt$ ")
        terminal.sees(rb"\xff\xfe\x1b\[1mprompt\$ $")
        assert terminal.is_raw()
        every_key = bytes(byte for byte in range(256) if byte != DETACH[0])
        terminal.types(every_key)
        heard = b""
        while len(heard) < len(every_key):
            part = guest.hears()
            assert isinstance(part, bytes)
            heard += part
        assert heard == every_key  # control-c, control-z and the rest are the guest's
        guest.prints(b"the last words")
        guest.tells(type="exit", exit_code=42, signal=None, duration_ms=5)
        guest.closes()
        assert terminal.ends() == 42
        assert terminal.shown.endswith(b"the last words")


def test_a_shell_that_was_killed(guests: Guests, attach: Attach) -> None:
    with attach("-q") as terminal:
        guest = next_of(guests)
        guest.starts()
        guest.tells(type="exit", exit_code=None, signal="SIGKILL", duration_ms=5)
        guest.closes()
        assert terminal.ends() == 137
        assert terminal.shown == b""


def test_a_new_size_is_told(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = next_of(guests)
        guest.starts()
        until(terminal.is_raw)
        terminal.resizes(132, 43)
        assert guest.hears() == {"type": "resize", "cols": 132, "rows": 43}
        terminal.types(DETACH)
        assert terminal.ends() == 0


def test_a_terminal_that_does_not_know_its_size_gets_the_usual_one(guests: Guests, attach: Attach) -> None:
    with attach(columns=0, rows=0) as terminal:
        guest = next_of(guests)
        assert guest.query == {"cols": "80", "rows": "24"}
        guest.starts()
        terminal.types(DETACH)
        assert terminal.ends() == 0


def test_another_detach_key(guests: Guests, attach: Attach) -> None:
    with attach("--detach-key", "ctrl-a") as terminal:
        guest = next_of(guests)
        guest.starts()
        terminal.sees(rb"ctrl-a leaves it running")
        until(terminal.is_raw)
        terminal.types(DETACH)
        assert guest.hears() == DETACH
        terminal.types(b"\x01")
        assert terminal.ends() == 0


def test_a_full_screen_is_left_as_it_was_found(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = next_of(guests)
        guest.starts()
        guest.prints(b"\x1b[?1049h\x1b[?25l\x1b[?1000hvim")
        terminal.sees(rb"vim")
        terminal.types(DETACH)
        assert terminal.ends() == 0
        assert b"\x1b[?25h\x1b[?1000l\x1b[?1049l" in terminal.shown


def test_a_sandbox_that_dies_is_told_with_its_reason(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = next_of(guests)
        guest.starts()
        guest.prints(b"\x1b[?1049hvim")
        terminal.sees(rb"vim")
        guest.tells(type="error", error={"code": "machine_died", "message": "the machine ended"})
        guest.closes(4500, "machine_died")
        assert terminal.ends() == 1
        assert b"\x1b[?1049l" in terminal.shown
        assert b"machine_died: the machine ended\r\n" in terminal.shown
        assert b"is error: the machine [31mran out of memory\r\n" in terminal.shown


def test_a_poold_that_vanishes_is_told(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = next_of(guests)
        guest.starts()
        until(terminal.is_raw)
        guest.vanishes()
        assert terminal.ends() == 3
        assert b"was lost" in terminal.shown
    with attach() as terminal:
        assert next_of(guests).query.get("pid") == "77"  # it may live on
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ends() == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_leaves_the_terminal_in_order(guests: Guests, attach: Attach, number: int, code: int) -> None:
    with attach() as terminal:
        guest = next_of(guests)
        guest.starts()
        guest.prints(b"\x1b[?25lbusy")
        terminal.sees(rb"busy")
        terminal.process.send_signal(number)
        assert terminal.ends() == code
        assert b"\x1b[?25h" in terminal.shown
        assert guest.is_left()


def test_a_flood_of_output_arrives_whole(guests: Guests, attach: Attach) -> None:
    with attach("-q") as terminal:
        guest = next_of(guests)
        guest.starts()
        until(terminal.is_raw)

        def flood() -> None:
            for number in range(400):
                guest.prints(b"%06d" % number * 500)
            guest.tells(type="exit", exit_code=0, signal=None, duration_ms=5)
            guest.closes()

        thread = threading.Thread(target=flood)
        thread.start()
        assert terminal.ends() == 0
        thread.join()
        assert terminal.shown == b"".join(b"%06d" % number * 500 for number in range(400))


def test_a_refusal_comes_before_the_terminal_is_touched(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = next_of(guests)
        guest.tells(type="error", error={"code": "wrong_state", "message": "it is paused"})
        guest.closes(4400)
        assert terminal.ends() == 1
        assert terminal.shown == b"pooldctl: wrong_state: it is paused\r\n"


def test_without_poold(attach: Attach) -> None:
    with attach() as terminal:
        assert terminal.ends() == 3
        assert b"is poold running?" in terminal.shown


def test_without_a_terminal_it_is_refused(ctl: Ctl) -> None:
    ran = ctl("attach", ONE)
    assert ran.code == 2
    assert "attach needs a terminal" in ran.err
