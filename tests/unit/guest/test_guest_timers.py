"""Whether timers keep time: one that comes in time is enough, none is a machine that must not boot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from warren_guest import timers

ENV = {**os.environ, "PYTHONPATH": str(Path(timers.__file__).parents[1])}


def test_the_timers_of_this_computer_keep_time() -> None:
    """In a process of its own: with more than one thread the alarm could come to another one, and be its end."""
    subprocess.run([sys.executable, "-c", "from warren_guest import timers; timers.check()"], env=ENV, check=True)


def test_one_timer_in_time_among_late_ones_is_enough() -> None:
    late = iter([0.2, 0.03, 0.011, 0.0])
    timers.check(lambda: next(late))
    assert list(late) == []


@pytest.mark.parametrize("late_s", [timers.LATE_S * 1.1, 4 * timers.WAIT_S])
def test_timers_that_are_always_late_are_told(late_s: float) -> None:
    with pytest.raises(timers.TimersError, match="late"):
        timers.check(lambda: late_s)
