"""Sandboxes while everything goes wrong: made, marked, used and destroyed; some are kept to the end.

What their clients were told must stay so: what has a mark has that mark for as long as it runs, what sleeps in the
store sleeps there until somebody wakes it and then has its mark, whatever became of the host that put it there, what
was destroyed is never there again, and each is found.
"""

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.nemesis.load import REST_S, Load

SANDBOXES = "/v1/sandboxes"
KEPT = 2  # by each player, at most: the rest of the room is for tasks
KEEP_EVERY = 3
DONE = (200, 202, 204)
WAKING_S = 60.0  # of patience with one that sleeps, while everything goes wrong


@dataclass
class Box:
    """A sandbox that was acknowledged, and what its client was told of it."""

    id: str
    mark: str
    is_marked: bool = False  # somebody was told that the mark is in it
    is_asleep: bool = False  # somebody was told so, and nobody has asked to wake it since
    woke: bool = False  # after it had slept, with its mark
    is_destroyed: bool = False  # somebody was told so
    last: Mapping[str, Any] | None = None  # of one that was kept: how it was found at the end
    wrong: list[str] = field(default_factory=list)


def play(load: Load, boxes: list[Box], number: int) -> None:
    """One after the other, until nothing new is to be begun."""
    chance = random.Random(f"{load.seed}-play-{number}")
    turn = kept = 0
    while not load.stop.is_set():
        turn += 1
        made = load.create(chance, SANDBOXES, {"timeout_sec": 7200}, f"s{number}-{turn}")
        if made is None:
            return
        box = Box(made, f"mark-{number}-{turn}")
        boxes.append(box)
        for _ in range(chance.randrange(2, 5)):
            use(load, box, chance)
            load.stop.wait(chance.random() * 3)
        if turn % KEEP_EVERY:
            destroy(load, box, chance)
            continue
        sleep(load, box, chance)
        if kept < KEPT:
            kept += 1
            continue
        load.stop.wait(chance.random() * 10)
        wake(load, box, chance, time.monotonic() + WAKING_S)
        destroy(load, box, chance)


def sleep(load: Load, box: Box, chance: random.Random) -> None:
    """Ask once that its files go to the store."""
    reply = load.call(chance, "POST", f"{SANDBOXES}/{box.id}/hibernate", {"kind": "files"})
    box.is_asleep = reply is not None and reply[0] == 200 and reply[1]["state"] == "hibernated"


def wake(load: Load, box: Box, chance: random.Random, give_up: float) -> None:
    """One that sleeps: it has its mark when it is awake, unless its host is lost at that moment."""
    was_asleep, box.is_asleep = box.is_asleep, False
    while was_asleep and not load.over.is_set() and time.monotonic() < give_up:
        reply = load.call(chance, "POST", f"{SANDBOXES}/{box.id}/resume")
        if reply is not None and reply[0] == 200:
            box.woke = use(load, box, chance)
            return
        if reply is not None and not load.may_ask_again(*reply):
            box.wrong.append(f"it does not wake: {reply}")
            return
        load.over.wait(REST_S)


def use(load: Load, box: Box, chance: random.Random) -> bool:
    """Mark it, or look whether its mark is there. One that does not answer, or is lost, says nothing.

    Whether it has its mark now.
    """
    command = "cat mark" if box.is_marked else f"echo {box.mark} > mark; cat mark"
    reply = load.call(chance, "POST", f"{SANDBOXES}/{box.id}/exec", {"cmd": command})
    if reply is None or reply[0] != 200:
        return False
    said = (reply[1]["exit_code"], reply[1]["stdout"].strip())
    if said == (0, box.mark):
        box.is_marked = True
    elif box.is_marked and said[0] is not None:  # None: it was killed in the middle
        box.wrong.append(f"its mark was {box.mark!r} and is {said}")
    return said == (0, box.mark)


def destroy(load: Load, box: Box, chance: random.Random, give_up: float = float("inf")) -> None:
    while not load.over.is_set() and not box.is_destroyed and time.monotonic() < give_up:
        reply = load.call(chance, "DELETE", f"{SANDBOXES}/{box.id}")
        box.is_destroyed = reply is not None and reply[0] in DONE
        if not box.is_destroyed:
            load.over.wait(REST_S)
