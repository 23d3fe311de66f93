"""`pooldctl attach` as people have it: a real process on a real terminal, against a WebSocket that plays poold."""

import contextlib
import fcntl
import json
import os
import pty
import queue
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, unix_serve

from tests.unit.ctl.conftest import LIMIT_S, Ctl
from tests.unit.ctl.ctl_poold import sandbox, sandbox_id

ONE = sandbox_id("one")
DETACH = b"\x1d"


class Guest:
    """One WebSocket of a terminal, from poold's side. The test's own thread drives it."""

    def __init__(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.query = dict(parse_qsl(urlsplit(connection.request.path).query))
        self._connection = connection
        self.is_over = threading.Event()

    def tells(self, **message: Any) -> None:
        self._connection.send(json.dumps(message))

    def starts(self, pid: int = 77) -> None:
        self.tells(type="start", pid=pid)

    def prints(self, data: bytes) -> None:
        self._connection.send(data)

    def hears(self) -> bytes | dict[str, Any]:
        message = self._connection.recv(LIMIT_S)
        if isinstance(message, bytes):
            return message
        told: dict[str, Any] = json.loads(message)
        return told

    def is_left(self) -> bool:
        """Whether the client closed the connection, after what it still says."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self._connection.recv(LIMIT_S)
        return True

    def closes(self, code: int = 1000, reason: str = "") -> None:
        self._connection.close(code, reason)

    def vanishes(self) -> None:
        self._connection.socket.shutdown(2)


class Terminal:
    """A terminal with pooldctl in it, and the person before it."""

    def __init__(self, master: int, slave: int, process: "subprocess.Popen[bytes]") -> None:
        self._master, self._slave = master, slave
        self.process = process
        self.screen = b""

    def sees(self, pattern: bytes) -> bytes:
        """Read until the screen has shown `pattern`; gives all that was shown up to then."""
        give_up = time.monotonic() + LIMIT_S
        while not re.search(pattern, self.screen):
            left = give_up - time.monotonic()
            assert left > 0, f"{pattern!r} is not in {self.screen!r}"
            if select.select([self._master], [], [], left)[0]:
                self.screen += os.read(self._master, 65536)
        return self.screen

    def types(self, data: bytes) -> None:
        os.write(self._master, data)

    def resizes(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def is_raw(self) -> bool:
        return not self.settings()[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def ends(self) -> int:
        """Its exit code; what it still shows is read meanwhile, or it could not end."""
        give_up = time.monotonic() + LIMIT_S
        while self.process.poll() is None or select.select([self._master], [], [], 0)[0]:
            assert time.monotonic() < give_up, f"it did not end: {self.screen!r}"
            if select.select([self._master], [], [], 0.01)[0]:
                self.screen += os.read(self._master, 65536)
        return int(self.process.returncode)


Attach = Callable[..., contextlib.AbstractContextManager[Terminal]]


@pytest.fixture
def guests(folder: Path) -> Iterator["queue.Queue[Guest]"]:
    """The terminals that are opened, in order."""
    opened: queue.Queue[Guest] = queue.Queue()
    all_of_them: list[Guest] = []

    def handle(connection: ServerConnection) -> None:
        guest = Guest(connection)
        all_of_them.append(guest)
        opened.put(guest)
        guest.is_over.wait(LIMIT_S)

    def plain(connection: ServerConnection, request: Request) -> Response | None:
        if "/terminal" in request.path:
            return None
        row = json.dumps(sandbox("one", "error", reason="the machine \x1b[31mran out of memory")).encode()
        return Response(HTTPStatus.OK, "OK", Headers({"Content-Length": str(len(row)), "Connection": "close"}), row)

    with unix_serve(handle, str(folder / "poold.sock"), process_request=plain, close_timeout=1) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield opened
        finally:
            for guest in all_of_them:
                guest.is_over.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def attach(environment: dict[str, str]) -> Attach:
    @contextlib.contextmanager
    def attach(*words: str, columns: int = 100, rows: int = 30) -> Iterator[Terminal]:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        before = termios.tcgetattr(slave)
        process = subprocess.Popen(
            [sys.executable, "-m", "poold.ctl", "attach", ONE, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        terminal = Terminal(master, slave, process)
        try:
            yield terminal
            assert process.returncode is not None, "the test did not see its end"
            assert terminal.settings() == before
            assert b"Traceback" not in terminal.screen, terminal.screen
        finally:
            process.kill()
            process.wait()
            os.close(master)
            os.close(slave)

    return attach


def _next(guests: "queue.Queue[Guest]") -> Guest:
    return guests.get(timeout=LIMIT_S)


def _until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.01)


Guests = queue.Queue[Guest]


def test_bytes_go_both_ways_and_the_exit_code_is_the_shells(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = _next(guests)
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
        assert terminal.screen.endswith(b"the last words")


def test_a_shell_that_was_killed(guests: Guests, attach: Attach) -> None:
    with attach("-q") as terminal:
        guest = _next(guests)
        guest.starts()
        guest.tells(type="exit", exit_code=None, signal="SIGKILL", duration_ms=5)
        guest.closes()
        assert terminal.ends() == 137
        assert terminal.screen == b""


def test_a_new_size_is_told(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = _next(guests)
        guest.starts()
        _until(terminal.is_raw)
        terminal.resizes(132, 43)
        assert guest.hears() == {"type": "resize", "cols": 132, "rows": 43}
        terminal.types(DETACH)
        assert terminal.ends() == 0


def test_a_terminal_that_does_not_know_its_size_gets_the_usual_one(guests: Guests, attach: Attach) -> None:
    with attach(columns=0, rows=0) as terminal:
        guest = _next(guests)
        assert guest.query == {"cols": "80", "rows": "24"}
        guest.starts()
        terminal.types(DETACH)
        assert terminal.ends() == 0


def test_who_leaves_finds_the_same_shell_again(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = _next(guests)
        guest.starts(pid=78)
        _until(terminal.is_raw)
        terminal.types(b"abc" + DETACH + b"not sent")
        assert guest.hears() == b"abc"
        assert guest.is_left()
        assert terminal.ends() == 0
        assert b"come back with: pooldctl attach " + ONE.encode() in terminal.screen
    with attach() as terminal:
        guest = _next(guests)
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
        guest = _next(guests)
        assert "pid" not in guest.query
        guest.starts()
        terminal.types(DETACH)
        assert terminal.ends() == 0


@pytest.mark.parametrize("words", [("--new",), ("--user", "root"), ("--cmd", "htop -d 5")])
def test_a_new_shell_can_be_asked_for(guests: Guests, attach: Attach, words: tuple[str, ...]) -> None:
    for options in ((), words):
        with attach(*options) as terminal:
            guest = _next(guests)
            guest.starts()
            terminal.sees(rb"in process")
            terminal.types(DETACH)
            assert terminal.ends() == 0
    wanted = {"user": "root"} if "--user" in words else {"cmd": "htop -d 5"} if "--cmd" in words else {}
    assert guest.query == {"cols": "100", "rows": "30", **wanted}


def test_a_shell_that_ended_while_nobody_looked_is_replaced(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        _next(guests).starts(pid=78)
        terminal.types(DETACH)
        assert terminal.ends() == 0
    with attach() as terminal:
        guest = _next(guests)
        guest.tells(type="error", error={"code": "not_found", "message": "no process 78"})
        guest.closes(4400)
        guest = _next(guests)
        assert "pid" not in guest.query
        guest.starts(pid=90)
        terminal.sees(rb"in process 90")
        terminal.types(DETACH)
        assert terminal.ends() == 0


def test_a_shell_by_its_number(guests: Guests, attach: Attach) -> None:
    with attach("--pid", "12") as terminal:
        guest = _next(guests)
        assert guest.query["pid"] == "12"
        guest.tells(type="error", error={"code": "not_found", "message": "no process 12"})
        guest.closes(4400)
        assert terminal.ends() == 4
        assert b"not_found: no process 12" in terminal.screen


def test_another_detach_key(guests: Guests, attach: Attach) -> None:
    with attach("--detach-key", "ctrl-a") as terminal:
        guest = _next(guests)
        guest.starts()
        terminal.sees(rb"ctrl-a leaves it running")
        _until(terminal.is_raw)
        terminal.types(DETACH)
        assert guest.hears() == DETACH
        terminal.types(b"\x01")
        assert terminal.ends() == 0


def test_a_full_screen_is_left_as_it_was_found(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = _next(guests)
        guest.starts()
        guest.prints(b"\x1b[?1049h\x1b[?25l\x1b[?1000hvim")
        terminal.sees(rb"vim")
        terminal.types(DETACH)
        assert terminal.ends() == 0
        assert b"\x1b[?25h\x1b[?1000l\x1b[?1049l" in terminal.screen


def test_a_sandbox_that_dies_is_told_with_its_reason(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = _next(guests)
        guest.starts()
        guest.prints(b"\x1b[?1049hvim")
        terminal.sees(rb"vim")
        guest.tells(type="error", error={"code": "machine_died", "message": "the machine ended"})
        guest.closes(4500, "machine_died")
        assert terminal.ends() == 1
        assert b"\x1b[?1049l" in terminal.screen
        assert b"machine_died: the machine ended\r\n" in terminal.screen
        assert b"is error: the machine [31mran out of memory\r\n" in terminal.screen


def test_a_poold_that_vanishes_is_told(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = _next(guests)
        guest.starts()
        _until(terminal.is_raw)
        guest.vanishes()
        assert terminal.ends() == 3
        assert b"was lost" in terminal.screen
    with attach() as terminal:
        assert _next(guests).query.get("pid") == "77"  # it may live on
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ends() == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_leaves_the_terminal_in_order(guests: Guests, attach: Attach, number: int, code: int) -> None:
    with attach() as terminal:
        guest = _next(guests)
        guest.starts()
        guest.prints(b"\x1b[?25lbusy")
        terminal.sees(rb"busy")
        terminal.process.send_signal(number)
        assert terminal.ends() == code
        assert b"\x1b[?25h" in terminal.screen
        assert guest.is_left()


def test_a_flood_of_output_arrives_whole(guests: Guests, attach: Attach) -> None:
    with attach("-q") as terminal:
        guest = _next(guests)
        guest.starts()
        _until(terminal.is_raw)

        def flood() -> None:
            for number in range(400):
                guest.prints(b"%06d" % number * 500)
            guest.tells(type="exit", exit_code=0, signal=None, duration_ms=5)
            guest.closes()

        thread = threading.Thread(target=flood)
        thread.start()
        assert terminal.ends() == 0
        thread.join()
        assert terminal.screen == b"".join(b"%06d" % number * 500 for number in range(400))


def test_a_refusal_comes_before_the_terminal_is_touched(guests: Guests, attach: Attach) -> None:
    with attach() as terminal:
        guest = _next(guests)
        guest.tells(type="error", error={"code": "wrong_state", "message": "it is paused"})
        guest.closes(4400)
        assert terminal.ends() == 1
        assert terminal.screen == b"pooldctl: wrong_state: it is paused\r\n"


def test_without_poold(attach: Attach) -> None:
    with attach() as terminal:
        assert terminal.ends() == 3
        assert b"is poold running?" in terminal.screen


def test_without_a_terminal_it_is_refused(ctl: Ctl) -> None:
    ran = ctl("attach", ONE)
    assert ran.code == 2
    assert "attach needs a terminal" in ran.err
