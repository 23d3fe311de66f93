"""`pooldctl drain` and `undrain`, as a person and as a program sees them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.ctl.conftest import Ctl
from tests.unit.ctl.ctl_poold import Poold, Refusal, Stream, sandbox_id, status

ONE = sandbox_id("one")
PAUSED = sandbox_id("paused")


def test_progress_is_told(ctl: Ctl, poold: Poold) -> None:
    ran = ctl("drain", "--in-place")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        f"{ONE} done, 1 left",
        f"{ONE} done, 0 left",
        "drained: 2 paused, 0 destroyed, 0 failed",
        "what is paused stays so, also after pooldctl undrain, until it is resumed",
    ]
    assert poold.asked[-1].body == {"mode": "pause"}
    events = [json.loads(line) for line in ctl("drain", "--destroy", "--json").out.splitlines()]
    assert events[-1] == {"event": "drained", "paused": 0, "destroyed": 2, "failed": 0}


def test_everything_is_moved_unless_it_is_told_otherwise(ctl: Ctl, poold: Poold) -> None:
    ran = ctl("drain", "--timeout-sec", "90")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "drain dr-1 is under way: the operator asked for it",
        "2 to move, 1 of them running",
        f"{ONE} pausing",
        f"{ONE} hibernated, 12 MB",
        "handing over to host-b",
        "host-b has everything that was here",
        f"{ONE} resumed at host-b",
        "drained to host-b: 1 running there, 0 failed, 0 asleep, 0 unknown",
        "this host is empty and takes nothing, until pooldctl undrain",
    ]
    assert poold.asked[-1].body == {"mode": "move", "timeout_sec": 90, "force": False}
    assert ctl("drain", "--destroy", "--in-place").code == 2


@pytest.mark.parametrize(
    ("left", "line"),
    [
        ({"failed": {ONE: "it is stuck"}, "undone": "not everything could be moved"}, "kept it from being moved"),
        ({"asleep": {ONE: "there is no room"}}, "1 asleep"),
        ({"unknown": [ONE]}, "its state there was not known in time"),
        ({"undone": "no other host has taken it in time"}, "undone, everything is here as before"),
    ],
)
def test_what_was_left_anywhere_makes_it_a_failure(ctl: Ctl, poold: Poold, left: dict[str, Any], line: str) -> None:
    told = {"to": "b", "moved": {}, "asleep": {}, "failed": {}, "unknown": [], "undone": None, **left}
    poold.answers["POST", "/admin/drain"] = Stream([("", "drained", told)])
    ran = ctl("drain")
    assert ran.code == 1
    assert line in ran.out


def test_one_that_cannot_be_moved_says_what_can_be_done(ctl: Ctl, poold: Poold) -> None:
    poold.answers["POST", "/admin/drain"] = Refusal(409, "cannot_drain", "nothing can be moved: --in-place")
    ran = ctl("drain")
    assert ran.code == 1
    assert "nothing can be moved: --in-place" in ran.err


def test_one_that_could_not_be_drained_fails(ctl: Ctl, poold: Poold) -> None:
    poold.answers["POST", "/admin/drain"] = Stream([("", "drained", {"paused": 1, "destroyed": 0, "failed": 1})])
    assert ctl("drain", "--in-place").code == 1


def test_a_poold_that_goes_away_is_told(ctl: Ctl, poold: Poold) -> None:
    poold.answers["POST", "/admin/drain"] = Stream([("", "progress", {"left": 4, "sandbox": ONE})], is_cut=True)
    ran = ctl("drain")
    assert ran.code == 3
    assert "before the host was drained" in ran.err


def test_undrain(ctl: Ctl, poold: Poold) -> None:
    assert ctl("undrain", "--json").json == {"draining": False}
    poold.answers["GET", "/admin/status"] = {**status(), "sandboxes": {"running": 1}}
    assert ctl("undrain").out == "poold takes sandboxes again\n"


def test_undrain_says_how_many_stay_paused_and_how_to_resume_them(
    ctl: Ctl, poold: Poold, environment: dict[str, str], folder: Path
) -> None:
    first, second = ctl("undrain").out.splitlines()
    assert first == "poold takes sandboxes again"
    told, _, command = second.partition(" with: ")
    assert told == "1 is paused; resume all of them"
    (folder / "pooldctl").write_text(f'#!/bin/sh\nexec {sys.executable} -m poold.ctl "$@"\n')
    (folder / "pooldctl").chmod(0o755)
    there = {**environment, "PATH": f"{folder}:{os.environ['PATH']}"}
    ran = subprocess.run(["bash", "-c", command], env=there, capture_output=True, text=True, check=False)
    assert ran.stdout == f"{PAUSED} running\n", ran.stderr
