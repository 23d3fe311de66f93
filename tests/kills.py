"""Hosts that are killed at random moments, and what of what they had acknowledged is lost with them."""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from poold.replica.errors import NothingToRestore
from tests.doomed_host import place_of
from tests.replicas import numbers

ROOT = Path(__file__).resolve().parent.parent
MODES = ("replicated", "local", "alone")
PER_FOLDER = 5  # kills of one host, which comes back each time; then it is another one
LONGEST_S = 0.6  # from the first acknowledgement to the kill
STRIDE = 1_000_000  # between the numbers of two lives of a host


@dataclass(frozen=True)
class Killed:
    """One kill."""

    acknowledged: int  # by this host, since its first life
    lost: int
    has_replica: bool = True  # that a successor could begin with


def kills(
    mode: str, count: int, folder: Path, store: str, *, environ: Mapping[str, str], seed: int
) -> Iterator[Killed]:
    """Kill hosts of this mode so often. Their Litestream goes with them, by the kernel's hand."""
    chance = random.Random(seed)
    acknowledged: set[int] = set()
    for turn in range(count):
        host, life = divmod(turn, PER_FOLDER)
        if life == 0:
            acknowledged = set()
        place = folder / f"{mode}-{host}", f"{store}/{mode}-{host}"
        acknowledged |= _life(mode, *place, environ, first=life * STRIDE, lives_s=chance.random() * LONGEST_S)
        try:
            found = _successors(mode, *place, environ)
        except NothingToRestore:
            yield Killed(len(acknowledged), len(acknowledged), has_replica=False)
        else:
            yield Killed(len(acknowledged), len(acknowledged - found))


def _life(mode: str, folder: Path, store: str, environ: Mapping[str, str], *, first: int, lives_s: float) -> set[int]:
    """What a host acknowledged from its start until it was killed."""
    argv = [sys.executable, "-m", "tests.doomed_host", mode, str(folder), store, str(first)]
    host = subprocess.Popen(argv, cwd=ROOT, env=dict(environ), stdout=subprocess.PIPE)
    assert host.stdout is not None
    try:
        line = host.stdout.readline()
        time.sleep(lives_s)
    finally:
        host.kill()
        rest, _ = host.communicate()
    assert line, "the host ended before it had acknowledged anything"
    return {int(line), *(int(number) for number in rest.splitlines() if number)}


def _successors(mode: str, folder: Path, store: str, environ: Mapping[str, str]) -> set[int]:
    """What the one who goes on has: the next daemon on the same disk, or another host with the replica only."""
    place = place_of(folder, store)
    if mode == "local":
        return numbers(place.ledger)
    place.environ = environ
    return asyncio.run(place.numbers())
