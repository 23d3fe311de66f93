"""A bell: how one part of the loop tells others that a state changed.

Whoever waits looks at the state first and again after each ring, so a ring that nobody hears is not lost.
"""

import asyncio


class Bell:
    """Wakes everyone who waits. Belongs to one event loop; never used from threads."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[bool]] = set()

    def ring(self) -> None:
        for future in self._waiting:
            _wake(future, heard=True)

    async def wait(self, limit_s: float | None = None) -> bool:
        """Wait for the next ring. False if `limit_s` passed without one."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting.add(future)
        timer = None if limit_s is None else loop.call_later(limit_s, lambda: _wake(future, heard=False))
        try:
            return await future
        finally:
            self._waiting.discard(future)
            if timer is not None:
                timer.cancel()


def _wake(future: asyncio.Future[bool], *, heard: bool) -> None:
    if not future.done():
        future.set_result(heard)
