"""Whether the machine's timers keep time.

A kernel finds out at its boot how fast they run, by counting for a tenth of a second. On a host that is busy in that
moment it may find far too much, or so little that it goes without timers.

Such a machine answers, and whatever waits in it waits for ever. So do all that are restored from it: it must not boot.
"""

import signal
import time
from collections.abc import Callable

WAIT_S = 0.04
LATE_S = 0.01
# One that comes late may be the host's fault; of so many one is in time if the timers are right.
_TRIES = 25
_GIVEN_UP_S = 4 * WAIT_S


class TimersError(Exception):
    """The machine's timers stand still or run slow."""


def check(measure: Callable[[], float] | None = None) -> None:
    """Raises `TimersError` if no timer came in time. Waits without a timer, as there may be none.

    For a process that has one thread yet: the alarm of a timer goes to any that lets it in, and ends the process.
    """
    measure = measure or lateness
    best = _GIVEN_UP_S
    for _ in range(_TRIES):
        best = min(best, measure())
        if best <= LATE_S:
            return
    raise TimersError(f"timers are late by {best:g} s or more in {WAIT_S:g} s: the kernel has their rate wrong")


def lateness() -> float:
    """By how much a timer is late, at least: in seconds, not beyond those after which it is given up."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, WAIT_S)
        waited = 0.0  # when it was last seen not to have come
        while signal.SIGALRM not in signal.sigpending():
            waited = time.monotonic() - began
            if waited > WAIT_S + _GIVEN_UP_S:
                break
        signal.setitimer(signal.ITIMER_REAL, 0)
        if signal.SIGALRM in signal.sigpending():
            signal.sigwait({signal.SIGALRM})
        return max(0.0, waited - WAIT_S)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
