"""The one clock that leases are counted by."""

import time
from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boottime_ns() -> int:
    """Nanoseconds since this kernel began, those included in which it was suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@cache
def boot_id() -> str:
    """Which boot of this kernel this is: times of another one mean nothing."""
    return _BOOT.read_text().strip()
