"""For truth: two hosts with real microVMs. One is lost while its machine works on a task; the other carries it on.

Behind a switch, `WARREN_NEMESIS_QEMU=1`, for it needs images and boots machines.
"""

import os
import random
import threading
import time

import pytest

from tests.cluster.cluster import START_LIMIT_S, until
from tests.nemesis import judge
from tests.nemesis.faults import Killed, under_way
from tests.nemesis.load import TASKS, Followed, Load
from tests.nemesis.place import Place, open_place

pytestmark = pytest.mark.skipif(os.environ.get("WARREN_NEMESIS_QEMU") != "1", reason="WARREN_NEMESIS_QEMU is not 1")

PROMPT = "run uname -a\nappend log.txt one\ncommit One\nrun sleep 5\nappend log.txt two\ncommit Two\nrun cat log.txt"
HOSTS = ("h1", "h2")


def test_a_task_in_a_real_machine_survives_its_host() -> None:
    with open_place(HOSTS, seed=0, engine="qemu") as place:
        load, chance = Load(place, 0, at_once=0), random.Random(0)
        made = load.create(chance, TASKS, {"agent": "mock", "prompt": PROMPT}, "qemu")
        assert made is not None, load.wrong
        task = Followed("qemu", made, {}, ("One", "Two"))
        follower = threading.Thread(target=load.follow, args=(task, chance))
        follower.start()
        try:
            lost = _lose(place, task)
            until(lambda: task.is_over, limit_s=START_LIMIT_S)
        finally:
            load.over.set()
            follower.join()
        reply = load.call(chance, "GET", f"{TASKS}/{made}")
        assert reply is not None
        assert task.wrong == []
        assert reply[1]["state"] == "completed", reply
        subjects = [each["subject"] for each in reply[1]["result"]["commits"]]
        assert [subjects.count(name) for name in task.commits] == [1, 1]
        assert "task.continued" in [heard.event["kind"] for heard in task.heard]
        print(f"kill_to_event_s={judge.waits_s([lost], [task])[0]:.1f}")


def _lose(place: Place, task: Followed) -> Killed:
    """Once there is something to go on from, and work under way after it."""
    until(lambda: any(heard.event["kind"] == "task.checkpoint" for heard in task.heard), limit_s=START_LIMIT_S)
    [host] = [name for name in HOSTS if task.id in under_way(place, name)]
    place.hold_down(host)
    killed = Killed(time.monotonic(), host, (task.id,))
    place.lose(host)
    return killed
