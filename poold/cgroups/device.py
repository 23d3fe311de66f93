"""The disk that holds a folder, as the kernel's throttling wants it named."""

import os
from pathlib import Path

SYS_BLOCK = Path("/sys/dev/block")


def disk_of(folder: Path, sys_block: Path = SYS_BLOCK) -> str | None:
    """`major:minor` of the whole disk under `folder`, or None if it is on no disk (a tmpfs, an overlay).

    A partition cannot be throttled: its disk can.
    """
    number = folder.stat().st_dev
    device = sys_block / f"{os.major(number)}:{os.minor(number)}"
    if not device.exists():
        return None
    if (device / "partition").exists():
        device = device.resolve().parent
    return (device / "dev").read_text().strip()
