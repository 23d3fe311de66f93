"""Work that may block, on files of this host."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from poold.errors import HostFault
from poold.lifetimes import finish

T = TypeVar("T")


async def in_thread(doing: str, subject: str, work: Callable[..., T], *args: object) -> T:
    """Call `work` in a thread. It is never left half-way: a cancellation waits for it. Raises `HostFault`."""
    try:
        return await finish(asyncio.to_thread(work, *args))
    except OSError as error:
        raise HostFault(doing, subject, hint=str(error)) from error
