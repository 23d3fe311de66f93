"""What keeps the supervisor answering, whatever the programs do that it has started.

Without this, a sandbox that forks without end is a machine that does not answer: the supervisor would get one share
of a processor among hundreds, and its own code would be thrown out of memory to make room for theirs.
"""

import contextlib
import os
import resource
from pathlib import Path

from warren_guest import syscalls

# A process that does nothing takes a third of a megabyte of a machine; most take more than one.
_BYTES_PER_PROCESS = 1 << 20
_FEWEST_PROCESSES = 256
_AUTOGROUP = "/proc/sys/kernel/sched_autogroup_enabled"


def share_by_session() -> None:
    """Processor time is shared between sessions, not between processes: what was asked for is one share each.

    The supervisor has one, too. It is not put before the others: it would then wake at every few bytes that a program
    writes, and output would take six times as long.
    """
    with contextlib.suppress(OSError):  # a kernel without it shares by process
        Path(_AUTOGROUP).write_text("1")


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
