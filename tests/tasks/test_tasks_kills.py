"""Poold is killed at random moments of a task, and the task goes on as if nothing had happened.

Each of its commits is made once. A client that comes back with the number of the last event that it saw, as browsers
do, has every event once. The moments come from a seed, which is told.
"""

import contextlib
import http.client
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.tasks.archive import opened
from tests.tasks.client import ENDS, LIMIT_S, Caller, Event, Task
from tests.tasks.stage import Stage
from tests.vm.client import until

KILLS = int(os.environ.get("WARREN_TASKS_KILLS", "3"))
SEED = int(os.environ.get("WARREN_TASKS_SEED", str(time.time_ns() % 1_000_000)))
COMMITS = 10
# Twenty steps, and some time between them.
WORK = "\n".join(f"run echo {number} > file{number}.txt; sleep 0.3\ncommit Step {number}" for number in range(COMMITS))
KILLED_WHILE_STARTING = 0.2  # of all kills
A_LIFE_S = 6.0  # of a poold, at most
CUT_OFF = (OSError, http.client.HTTPException)


class Follower:
    """A client that comes back whenever it is cut off, as a browser does."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.seen: list[Event] = []
        self.cuts = 0
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self.is_done:
            last = self.seen[-1]["seq"] if self.seen else None
            with contextlib.suppress(AssertionError, *CUT_OFF), self.task.follow(resumed=last) as stream:
                for event in stream:
                    self.seen.append(event)
            self.cuts += not self.is_done
            time.sleep(0.1)

    @property
    def is_done(self) -> bool:
        return bool(self.seen) and self.seen[-1]["kind"] in ENDS

    def wait(self) -> None:
        self._thread.join(LIMIT_S)
        assert self.is_done, self.seen[-3:]


def test_a_task_survives_every_kill_of_its_host(stage: Stage, alice: Caller) -> None:
    dice = random.Random(SEED)
    print(f"\nseed {SEED}, {KILLS} kills", flush=True)
    left = KILLS
    while left > 0:
        left -= survived(stage, alice, dice, left)


def survived(stage: Stage, alice: Caller, dice: random.Random, left: int) -> int:
    """One task, with kills until it has ended. Gives how many there were."""
    task = alice.task(WORK)
    follower = Follower(task)
    kills = 0
    while kills < left and not follower.is_done:
        time.sleep(dice.uniform(0, A_LIFE_S))
        stage.kill_poold()
        kills += 1
        if dice.random() < KILLED_WHILE_STARTING:
            stage.host.start()
            time.sleep(dice.uniform(0, 2))
            stage.kill_poold()
            kills += 1
        stage.start_poold()
    view = patient(task.ended, stage)
    follower.wait()
    whole(task, view, follower, f"seed {SEED}, {left} kills left")
    return kills


def patient(look: Callable[[], dict[str, Any]], stage: Stage) -> dict[str, Any]:
    try:
        return look()
    except AssertionError as error:
        raise AssertionError(f"seed {SEED}: {error}\n{stage.host.log()[-6000:]}") from None


def whole(task: Task, view: dict[str, Any], follower: Follower, where: str) -> None:
    """The task is as if nobody had been killed."""
    numbers = [event["seq"] for event in follower.seen]
    assert numbers == list(range(1, len(numbers) + 1)), where
    assert follower.seen == task.events(), where
    told = [event["guest_seq"] for event in follower.seen if event.get("guest_seq") is not None]
    assert told == sorted(set(told)), where
    with opened(task) as archive:
        subjects = archive.subjects()
        wanted = [f"Step {number}" for number in range(COMMITS)]
        assert [subject for subject in subjects if subject.startswith("Step")] == wanted, where
        assert len(subjects) == len(set(subjects)), where
        for number in range(COMMITS):
            assert archive.found(f"file{number}.txt").read_text().strip() == str(number), where
    assert len(view["result"]["commits"]) == len(subjects), where
    steps = task.steps()
    assert [step["number"] for step in steps] == list(range(1, len(steps) + 1)), where
    assert view["usage"]["steps"] == len(steps), where
    until(lambda: task.caller.call("GET", f"/v1/sandboxes/{view['sandbox']}").json["state"] == "stopped")
