"""When to look at a sandbox again: at most one timer for each."""

import asyncio
from collections.abc import Callable

MAX_TIMER_S = 24 * 3600.0  # a loop's timer for longer would be no more exact, and clocks are set


class Timers:
    """Calls `due` with a sandbox's id when its timer goes off, until `stop`."""

    def __init__(self, due: Callable[[str], object]) -> None:
        self._due = due
        self._handles: dict[str, asyncio.TimerHandle] = {}
        self._is_stopped = False

    def set(self, sandbox_id: str, delay_s: float) -> None:
        """Look at the sandbox after `delay_s` or earlier, and at no other time."""
        self.clear(sandbox_id)
        if not self._is_stopped:
            delay_s = min(MAX_TIMER_S, max(0.0, delay_s))
            self._handles[sandbox_id] = asyncio.get_running_loop().call_later(delay_s, self._goes_off, sandbox_id)

    def clear(self, sandbox_id: str) -> None:
        handle = self._handles.pop(sandbox_id, None)
        if handle is not None:
            handle.cancel()

    def stop(self) -> None:
        """No timer goes off any more, and none is set."""
        self._is_stopped = True
        for sandbox_id in list(self._handles):
            self.clear(sandbox_id)

    def _goes_off(self, sandbox_id: str) -> None:
        del self._handles[sandbox_id]
        self._due(sandbox_id)
