"""For truth: two hosts with real microVMs. One is lost while its machine works on a task; the other carries it on.

What hibernates in the store wakes there, with its files; what ran or was paused on the lost host says so.

Behind a switch, `WARREN_NEMESIS_QEMU=1`, for it needs images and boots machines.
"""

import os
import random
import threading
import time
from collections.abc import Mapping

import pytest

from tests.cluster.cluster import START_LIMIT_S, until
from tests.nemesis import judge
from tests.nemesis.boxes import DONE, SANDBOXES, Box, destroy, use
from tests.nemesis.faults import Killed, under_way
from tests.nemesis.load import TASKS, Followed, Load
from tests.nemesis.place import Place, open_place

pytestmark = pytest.mark.skipif(os.environ.get("WARREN_NEMESIS_QEMU") != "1", reason="WARREN_NEMESIS_QEMU is not 1")

PROMPT = "run uname -a\nappend log.txt one\ncommit One\nrun sleep 120\nappend log.txt two\ncommit Two\nrun cat log.txt"
HOSTS = ("h1", "h2")


def test_a_task_in_a_real_machine_survives_its_host_and_so_does_what_hibernates() -> None:
    with open_place(HOSTS, seed=0, engine="qemu") as place:
        load, chance = Load(place, 0, at_once=0), random.Random(0)
        made = load.create(chance, TASKS, {"agent": "mock", "prompt": PROMPT}, "qemu")
        assert made is not None, load.wrong
        task = Followed("qemu", made, {}, ("One", "Two"))
        follower = threading.Thread(target=load.follow, args=(task, chance))
        follower.start()
        try:
            host = _works_at(place, task)
            boxes = {name: _at(place, load, host, name) for name in ("hibernate", "pause", "leave")}
            lost = _lose(place, task, host)
            until(lambda: task.is_over, limit_s=START_LIMIT_S)
            _found_again(load, boxes)
        finally:
            load.over.set()
            follower.join()
        _is_whole(load, task)
        print(f"kill_to_event_s={judge.waits_s([lost], [task])[0]:.1f}")


def _is_whole(load: Load, task: Followed) -> None:
    reply = load.call(random.Random(0), "GET", f"{TASKS}/{task.id}")
    assert reply is not None
    assert task.wrong == []
    assert reply[1]["state"] == "completed", reply
    subjects = [each["subject"] for each in reply[1]["result"]["commits"]]
    assert [subjects.count(name) for name in task.commits] == [1, 1]
    assert "task.continued" in [heard.event["kind"] for heard in task.heard]


def _works_at(place: Place, task: Followed) -> str:
    """Once there is something to go on from, and work under way after it."""
    until(lambda: any(heard.event["kind"] == "task.checkpoint" for heard in task.heard), limit_s=START_LIMIT_S)
    [host] = [name for name in HOSTS if task.id in under_way(place, name)]
    return host


def _at(place: Place, load: Load, host: str, what: str) -> Box:
    """A sandbox on that host, with its mark, to which `what` was done."""
    chance = random.Random(what)
    for turn in range(20):
        made = load.create(chance, SANDBOXES, {"timeout_sec": 7200}, f"{what}-{turn}")
        assert made is not None, load.wrong
        box = Box(made, f"mark-{turn}")
        if place.host_of(made) != host:
            destroy(load, box, chance)
            continue
        use(load, box, chance)
        assert box.is_marked
        if what != "leave":
            until(lambda: _done(load, chance, f"{SANDBOXES}/{made}/{what}"), limit_s=START_LIMIT_S)  # noqa: B023
        return box
    raise AssertionError(f"no sandbox was made on {host}")


def _done(load: Load, chance: random.Random, path: str) -> bool:
    reply = load.call(chance, "POST", path)
    return reply is not None and reply[0] in DONE


def _found_again(load: Load, boxes: Mapping[str, Box]) -> None:
    chance = random.Random(0)
    views = {name: load.call(chance, "GET", f"{SANDBOXES}/{box.id}") for name, box in boxes.items()}
    states = {name: view and view[1]["state"] for name, view in views.items()}
    assert states == {"hibernate": "hibernated", "pause": "error", "leave": "error"}, views
    assert all("host_lost" in str(views[name]) for name in ("pause", "leave")), views
    slept = boxes["hibernate"]
    until(lambda: _done(load, chance, f"{SANDBOXES}/{slept.id}/resume"), limit_s=START_LIMIT_S)
    reply = load.call(chance, "POST", f"{SANDBOXES}/{slept.id}/exec", {"cmd": "cat mark"})
    assert reply is not None
    assert reply[1]["stdout"].strip() == slept.mark, reply
    for box in boxes.values():
        destroy(load, box, chance)


def _lose(place: Place, task: Followed, host: str) -> Killed:
    place.hold_down(host)
    killed = Killed(time.monotonic(), host, (task.id,))
    place.lose(host)
    return killed
