"""The parts of the nemesis that must work when nothing else does: where the time went, and clearing up."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nemesis import place
from tests.nemesis.leases import Written
from tests.nemesis.load import Followed, Heard
from tests.nemesis.place import ended_in_order, sweep
from tests.nemesis.takeovers import takeovers

LOG = rb"""not json
{"what": "a lost host's lease was taken", "host": "h1", "epoch": 1, "late_s": 0.2}
{"what": "a lost host's ledger was made from its replica", "host": "h1", "epoch": 1, "took_s": 0.7}
{"what": "a lost host was taken over", "host": "h1", "epoch": 1, "first_s": 0.4, "took_s": 1.5}
{"what": "a lost host was taken over", "host": "h1", "epoch": 7, "first_s": 9.0, "took_s": 9.0}
"""


def written(at: float, epoch: int, root: int, *taken: tuple[int, int, str, int]) -> Written:
    return Written(at, "h1", epoch, root, "a", int(at), taken)


def test_each_takeover_says_where_its_time_went() -> None:
    line = (1, 1, "h2", 4)
    leases = [written(1, 1, 1), written(10, 2, 0, line), written(12, 3, 3, line), written(13, 3, 3)]
    lost = {"kind": "sandbox.lost", "data": {"reason": "host_lost: host h1 is gone, and with it"}}
    tasks = [Followed("t", "tk-a", {}, (), [Heard(at, lost)]) for at in (12.5, 11.5)]
    [found] = takeovers(leases, tasks, {"h2": LOG.splitlines()})
    assert found.line() == (
        "takeover h1/1 by h2: taken=+9.0 settled=+12.0 first_event=+10.5 last_event=+11.5"
        " late=0.2 restored_in=0.7 first_rows_in=0.4 rows_in=1.5 tasks=2"
    )


def test_who_is_ended_clears_up_and_is_not_disturbed_meanwhile() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        _ended_and_ended_again()
    assert signal.getsignal(signal.SIGTERM) is before


def _ended_and_ended_again() -> None:
    with ended_in_order() as undisturbed:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            undisturbed()
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)


def test_what_a_killed_round_has_left_is_ended_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = subprocess.Popen(["true"])
    over.wait()
    monkeypatch.setattr(place, "FOLDERS", (tmp_path / "round-",))
    left, alive = tmp_path / f"round-{over.pid}-x", tmp_path / f"round-{os.getpid()}-x"
    for folder in (left, alive):
        folder.mkdir()
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    of_left, of_alive = (subprocess.Popen([*argv, f"{folder}/state"]) for folder in (left, alive))
    try:
        sweep()
        assert of_left.wait(60) == -signal.SIGKILL
        assert (left.exists(), alive.exists(), of_alive.poll()) == (False, True, None)
    finally:
        for process in (of_left, of_alive):
            process.kill()
            process.wait()
