"""The reaper: a status goes to who started the process, and to nobody who had its pid later."""

import asyncio
import os

from warren_guest.reaper import Reaper


def ended(status: int) -> int:
    """A child of ours that has ended with `status`."""
    pid = os.fork()
    if pid == 0:
        os._exit(status)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


async def test_a_child_that_ends_before_it_is_claimed_has_its_own_status() -> None:
    reaper, told = Reaper(), []
    start = reaper.expect()
    pid = ended(7)
    reaper.reap()
    reaper.claim(pid, told.append, start)
    await asyncio.sleep(0)
    assert [os.waitstatus_to_exitcode(status) for status in told] == [7]


async def test_what_ended_before_a_start_is_not_its_end() -> None:
    """Another start hangs, so statuses are kept; then a pid comes again."""
    reaper, told = Reaper(), []
    reaper.expect()
    pid = ended(7)
    reaper.reap()
    reaper.claim(pid, told.append, reaper.expect())
    await asyncio.sleep(0)
    assert told == []
