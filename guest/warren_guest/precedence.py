"""The supervisor comes before what it supervises: in time, in memory, and in how many there may be of the others.

Without this, a sandbox that forks without end is a machine that does not answer: the supervisor would get one share
of a processor among hundreds, and its own code would be thrown out of memory to make room for theirs.
"""

import contextlib
import os
import resource

from warren_guest import syscalls

# A process that does nothing takes a third of a megabyte of a machine; most take more than one.
_BYTES_PER_PROCESS = 1 << 20
_FEWEST_PROCESSES = 256


def run_first() -> None:
    """From now on this thread runs whenever it can, before all ordinary ones. What it starts is ordinary again."""
    with contextlib.suppress(PermissionError):  # not the first process of a machine, but of a test
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def stay_in_memory() -> None:
    """Keep every page that this process has touched or will touch. What it starts does not inherit this."""
    with contextlib.suppress(OSError):  # memory that is short is slow, and no reason not to start
        syscalls.lock_touched_memory()


def limit_processes() -> None:
    """Each ordinary user may have as many processes and threads as fit into the machine; more fail with EAGAIN.

    The limit is inherited by what is started from here, and does not hold for the superuser.
    """
    limit = process_limit(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE"))
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def process_limit(memory_bytes: int) -> int:
    """How many processes one user may have in a machine with this much memory."""
    return max(_FEWEST_PROCESSES, memory_bytes // _BYTES_PER_PROCESS)
