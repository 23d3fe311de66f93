"""The nemesis: named faults, each with its undo, chosen by a seed.

There are two hands: one is at the hosts, the other at the store and the gateways. So two things go wrong at a time.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from poold.ledger.driver import sqlite3
from tests.cluster.cluster import GATEWAYS
from tests.nemesis.place import STORE, Place

AT_HOST_S, HOST_REST_S = (2.0, 14.0), (0.0, 4.0)  # some are over before a lease is, others are not
AT_STORE_S, STORE_REST_S = (1.0, 6.0), (4.0, 14.0)  # what all hosts have in common: they must get on in between
CLOCK_S = 30
SLOW_S = (0.1, 0.5)

Span = tuple[float, float]
Fault = Callable[[Place, str, random.Random], AbstractContextManager[None]]


@contextlib.contextmanager
def kill_host(place: Place, name: str, _chance: random.Random) -> Iterator[None]:
    place.hold_down(name)
    place.lose(name)
    try:
        yield
    finally:
        place.start(name)


@contextlib.contextmanager
def kill_program(place: Place, name: str, _chance: random.Random) -> Iterator[None]:
    """A poold whose machines and warden live on, or a gateway."""
    place.hold_down(name)
    place.kill_program(name)
    try:
        yield
    finally:
        place.start(name)


@contextlib.contextmanager
def kill_litestream(place: Place, name: str, _chance: random.Random) -> Iterator[None]:
    """poold starts it again by itself."""
    for pid in place.processes(name, "litestream"):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    yield


@contextlib.contextmanager
def _parted(place: Place, name: str, others: Sequence[str]) -> Iterator[None]:
    place.part(name, others)
    try:
        yield
    finally:
        place.join(name)


def part_from_store(place: Place, name: str, _chance: random.Random) -> AbstractContextManager[None]:
    return _parted(place, name, [STORE])


def part_from_gateways(place: Place, name: str, _chance: random.Random) -> AbstractContextManager[None]:
    return _parted(place, name, GATEWAYS)


def part_from_both(place: Place, name: str, _chance: random.Random) -> AbstractContextManager[None]:
    return _parted(place, name, [STORE, *GATEWAYS])


@contextlib.contextmanager
def jump_clock(place: Place, name: str, chance: random.Random) -> Iterator[None]:
    """There, and back: it jumps twice."""
    place.set_clock(name, chance.choice((CLOCK_S, -CLOCK_S)))
    try:
        yield
    finally:
        place.set_clock(name, 0)


@contextlib.contextmanager
def fill_disk(place: Place, name: str, _chance: random.Random) -> Iterator[None]:
    place.fill_disk(name)
    try:
        yield
    finally:
        place.empty_disk(name)


@contextlib.contextmanager
def _bad_store(place: Place, change: Callable[..., None]) -> Iterator[None]:
    assert place.store is not None
    place.store.do(change)
    try:
        yield
    finally:
        place.store.do(lambda faults: faults.heal())


def slow_store(place: Place, _name: str, chance: random.Random) -> AbstractContextManager[None]:
    seconds = chance.choice(SLOW_S)
    return _bad_store(place, lambda faults: faults.slow(seconds))


def busy_store(place: Place, _name: str, chance: random.Random) -> AbstractContextManager[None]:
    share = chance.choice((0.3, 1.0))
    return _bad_store(place, lambda faults: faults.unavailable(share=share))


def store_that_loses_replies(place: Place, _name: str, chance: random.Random) -> AbstractContextManager[None]:
    share = chance.choice((0.2, 0.6))
    return _bad_store(place, lambda faults: faults.lose_replies(share=share))


def store_that_does_it_and_answers_503(place: Place, _name: str, chance: random.Random) -> AbstractContextManager[None]:
    share = chance.choice((0.2, 0.6))
    return _bad_store(place, lambda faults: faults.done_but_unavailable(share=share))


AT_HOSTS: dict[str, Fault] = {
    "kill_host": kill_host,
    "kill_poold": kill_program,
    "kill_litestream": kill_litestream,
    "part_from_store": part_from_store,
    "part_from_gateways": part_from_gateways,
    "part_from_both": part_from_both,
    "fill_disk": fill_disk,
    "jump_clock": jump_clock,
}
ELSEWHERE: dict[str, Fault] = {
    "kill_gateway": kill_program,
    "slow_store": slow_store,
    "busy_store": busy_store,
    "lost_replies": store_that_loses_replies,
    "done_and_503": store_that_does_it_and_answers_503,
}
OFTEN = ("kill_host",)  # twice in each turn of the others


def shuffled(chance: random.Random, names: Sequence[str]) -> list[str]:
    return chance.sample(names, len(names))


@dataclass(frozen=True)
class Killed:
    """A host that was lost with all that ran on it, and the tasks that it had under way."""

    at: float  # monotonic
    host: str
    tasks: tuple[str, ...]


@dataclass
class Nemesis:
    place: Place
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    killed: list[Killed] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    takeovers: list[str] = field(default_factory=list)  # told at the end
    stop: threading.Event = field(default_factory=threading.Event)
    failed: list[BaseException] = field(default_factory=list)

    def hand(self, faults: dict[str, Fault], victims: Sequence[str], lasts: Span, rests: Span) -> None:
        """One fault after the other, each kind before any comes again. When it stops, all is undone."""
        chance = random.Random(f"{self.seed}-{sorted(faults)[0]}")
        deck: list[str] = []
        try:
            while not self.stop.is_set():
                if not deck:
                    deck = shuffled(chance, [*faults, *(name for name in faults if name in OFTEN)])
                name, victim = deck.pop(), chance.choice(victims)
                lasts_s, rest_s = chance.uniform(*lasts), chance.uniform(*rests)
                self._note(name, victim, lasts_s)
                with faults[name](self.place, victim, chance):
                    self.stop.wait(lasts_s)
                self.story.append(f"{time.monotonic():.2f} {name} {victim} is over")
                self.stop.wait(rest_s)
        except BaseException as error:
            self.failed.append(error)

    def _note(self, name: str, victim: str, lasts_s: float) -> None:
        self.counts[name] += 1
        self.story.append(f"{time.monotonic():.2f} {name} {victim} for {lasts_s:.1f} s")
        if name == "kill_host":
            self.killed.append(Killed(time.monotonic(), victim, tuple(under_way(self.place, victim))))

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        hands = [
            (AT_HOSTS, self.place.hosts_here, AT_HOST_S, HOST_REST_S),
            (ELSEWHERE, GATEWAYS, AT_STORE_S, STORE_REST_S),
        ]
        threads = [threading.Thread(target=self.hand, args=each) for each in hands]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()
        assert not self.failed, self.failed


def under_way(place: Place, host: str) -> list[str]:
    """Tasks that a host works on, as its disk says."""
    with contextlib.suppress(sqlite3.Error):
        path = place.state(host) / "ledger.db"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return [row[0] for row in db.execute("SELECT id FROM tasks WHERE state IN ('planning', 'running')")]
    return []
