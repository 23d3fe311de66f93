"""Processes and all that is below them: looked at, stopped, and let go on. All of this blocks."""

import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from poold.errors import EngineError

STOP_LIMIT_S = 10.0  # a process that the kernel is busy with stops when it is done
LOOK_AGAIN_S = 0.001

STOPPED = frozenset("Tt")  # as /proc has it: stopped, traced
STOPPED_OR_OVER = STOPPED | frozenset("ZX")  # or zombie, or dead
IN_THE_KERNEL = "D"  # it will not return to its program before it has seen our signal


@dataclass(frozen=True)
class Look:
    """All processes of this host at one moment."""

    states: dict[int, str]
    parents: dict[int, int]
    children: dict[int, list[int]]

    def below(self, roots: Iterable[int]) -> dict[int, str]:
        """The states of `roots` and of all processes below them, parents first."""
        family = [pid for pid in roots if pid in self.states]
        for pid in family:  # grows while it is walked
            family += self.children.get(pid, [])
        return {pid: self.states[pid] for pid in family}


def look() -> Look:
    states: dict[int, str] = {}
    parents: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it is gone
                # The name in the second field may hold anything, but no later ")" than its own.
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                states[int(entry.name)], parents[int(entry.name)] = state, int(parent)
                children[int(parent)].append(int(entry.name))
    return Look(states, parents, children)


def stop(roots: Iterable[int], spared: Collection[int] = ()) -> list[int]:
    """Stop `roots` and everything below them but those to be `spared`. Returns whom it stopped, in this order.

    Parents come first, so that a shell does not see its jobs stop. A process with a stop signal before it cannot
    fork, so what a look does not find in motion stays at rest.
    """
    stopped: dict[int, None] = {}
    give_up_at = time.monotonic() + STOP_LIMIT_S
    while True:
        states = {pid: state for pid, state in look().below(roots).items() if pid not in spared}
        moving = [pid for pid, state in states.items() if state not in STOPPED_OR_OVER]
        for pid in moving:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                stopped[pid] = None
        if all(states[pid] == IN_THE_KERNEL for pid in moving):
            return list(stopped)
        if time.monotonic() > give_up_at:
            raise EngineError("stopping", f"processes {moving}", hint="they do not stop; look at their stacks in /proc")
        time.sleep(LOOK_AGAIN_S)


def go_on(root: int, stopped: Iterable[int]) -> None:
    """Let those of the `stopped` go on that are still below `root`. Whom somebody else stopped stays so.

    Children come first, so that a shell finds its jobs running.
    """
    family = look().below([root])
    for pid in reversed(list(stopped)):
        if pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
