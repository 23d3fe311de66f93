"""`pooldctl top`: shares of processors from two samples, and a screen that is given back."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from poold.ctl.top import ENTER, LEAVE, cpu_percent
from tests.unit.ctl.conftest import LIMIT_S, Ctl
from tests.unit.ctl.ctl_poold import Poold, Refusal, sandbox_id


def _sample(at_ms: int, **cpu_s: float) -> dict[str, Any]:
    return {"at_ms": at_ms, "machines": [{"machine": name, "cpu_s": used} for name, used in cpu_s.items()]}


def test_shares_come_from_two_samples() -> None:
    before, now = _sample(1000, a=1.0, b=5.0, gone=1.0), _sample(3000, a=2.0, b=5.0, new=9.0)
    assert cpu_percent(before, now) == {"a": 50.0, "b": 0.0, "new": None}
    assert cpu_percent(before, before) == {"a": None, "b": None, "gone": None}


def test_a_counter_that_starts_again_is_not_less_than_nothing() -> None:
    assert cpu_percent(_sample(0, a=9.0), _sample(1000, a=0.1)) == {"a": 0.0}


def test_once_the_busiest_come_first(ctl: Ctl, poold: Poold) -> None:
    lines = ctl("top", "--once", "--interval", "0.01").out.splitlines()
    assert lines[0].split()[:4] == ["SANDBOX", "IMAGE", "OWNER", "CPU"]
    assert lines[1].split()[:4] == [sandbox_id("one"), "python", "local", "50.0"]
    assert lines[2].startswith("(warm) vm-2")
    machines = ctl("top", "--json", "--interval", "0.01").json["machines"]
    assert {row["machine"]: row["cpu_percent"] for row in machines} == {"vm-1": 50.0, "vm-2": 0.0}


def test_away_from_a_terminal_it_is_one_plain_table(ctl: Ctl, poold: Poold) -> None:
    ran = ctl("top", "--interval", "0.01")
    assert ran.code == 0
    assert "\x1b" not in ran.out
    assert len(ran.out.splitlines()) == 3


class _Screen:
    def __init__(self, master: int, slave: int, process: "subprocess.Popen[bytes]") -> None:
        self._master, self.slave, self.process = master, slave, process
        self.shown = b""

    def read_until(self, is_so: Any) -> None:
        give_up = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < give_up, self.shown
            if select.select([self._master], [], [], 0.05)[0]:
                self.shown += os.read(self._master, 65536)

    def types(self, data: bytes) -> None:
        os.write(self._master, data)

    def ends(self) -> int:
        self.read_until(lambda: self.process.poll() is not None and LEAVE.encode() in self.shown)
        return int(self.process.returncode)


@contextmanager
def _live(environment: dict[str, str]) -> Iterator[_Screen]:
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    command = [sys.executable, "-m", "poold.ctl", "top", "--interval", "0.05"]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    try:
        screen = _Screen(master, slave, process)
        screen.read_until(lambda: screen.shown.count(b"q to quit") >= 3)
        yield screen
        assert screen.shown.startswith(ENTER.encode())
        assert termios.tcgetattr(slave) == before
        assert b"Traceback" not in screen.shown
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


def test_it_is_drawn_again_until_q_is_typed(poold: Poold, environment: dict[str, str]) -> None:
    with _live(environment) as screen:
        assert b"50.0" in screen.shown
        screen.types(b"xq")
        assert screen.ends() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_however_it_ends_the_screen_is_given_back(
    poold: Poold, environment: dict[str, str], number: int, code: int
) -> None:
    with _live(environment) as screen:
        screen.process.send_signal(number)
        assert screen.ends() == code


def test_an_error_is_told_on_the_screen_that_stays(poold: Poold, environment: dict[str, str]) -> None:
    with _live(environment) as screen:
        poold.answers["GET", "/admin/top"] = Refusal(500, "internal", "an internal error")
        assert screen.ends() == 1
        screen.read_until(lambda: b"an internal error" in screen.shown.partition(LEAVE.encode())[2])
