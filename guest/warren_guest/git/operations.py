"""Operations: each is done once, however often it is asked for.

An operation does not end with the connection that asked for it, because a host that starts again asks again. But one
that nobody waits for any more is given up after a while, and leaves nothing.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from warren_guest.errors import RefusedError

KEPT = 100
UNDER_WAY_LIMIT = 16
# A host that was started again has asked once more within this time, or has other plans.
FORSAKEN_S = 60.0

Result = dict[str, object]
Work = Callable[[], Coroutine[Any, Any, Result]]


class _Operation:
    def __init__(self, request: object, task: "asyncio.Task[Result]") -> None:
        self.request = request
        self.task = task
        self.waiting = 0
        self.giving_up: asyncio.TimerHandle | None = None


class Operations:
    """Every operation that is under way, and the last ones that are over. Lives on the loop."""

    def __init__(self, forsaken_s: float = FORSAKEN_S) -> None:
        self._forsaken_s = forsaken_s
        self._operations: OrderedDict[str, _Operation] = OrderedDict()

    async def do(self, name: str, request: object, work: Work) -> Result:
        """The answer of operation `name`: of its work, which is begun if nobody asked for it before.

        `request` is what it is about, without secrets: another one under the same name is refused.
        """
        known = self._operations.get(name)
        if known is None:
            known = self._begin(name, request, work)
        elif known.request != request:
            raise RefusedError("operation_taken", f"operation {name} was asked for with another request")
        return await self._wait(name, known)

    def _begin(self, name: str, request: object, work: Work) -> _Operation:
        if sum(not known.task.done() for known in self._operations.values()) >= UNDER_WAY_LIMIT:
            raise RefusedError("too_many_operations", f"{UNDER_WAY_LIMIT} operations are under way")
        task = asyncio.get_running_loop().create_task(work())
        known = self._operations[name] = _Operation(request, task)
        task.add_done_callback(lambda _task: self._over(name, known))
        return known

    def _over(self, name: str, known: _Operation) -> None:
        """Keep what is an answer; forget what was broken off, so that another try is made."""
        is_answer = not known.task.cancelled() and (
            known.task.exception() is None or isinstance(known.task.exception(), RefusedError)
        )
        if not is_answer and self._operations.get(name) is known:
            del self._operations[name]
        over = [each for each, known in self._operations.items() if known.task.done()]
        for oldest in over[:-KEPT]:
            del self._operations[oldest]

    async def _wait(self, name: str, known: _Operation) -> Result:
        if known.giving_up is not None:
            known.giving_up.cancel()
            known.giving_up = None
        known.waiting += 1
        try:
            await asyncio.wait({known.task})
        finally:
            known.waiting -= 1
            if not known.waiting and not known.task.done():
                loop = asyncio.get_running_loop()
                known.giving_up = loop.call_later(self._forsaken_s, known.task.cancel)
        if known.task.cancelled():
            raise RefusedError("cancelled", f"operation {name} was cancelled")
        return known.task.result()

    async def cancel(self, name: str) -> bool:
        """End an operation that is under way, and wait until nothing of it is left. False if there is none."""
        known = self._operations.get(name)
        if known is None or known.task.done():
            return False
        known.task.cancel()
        await asyncio.wait({known.task})
        return True

    async def close(self) -> None:
        tasks = [known.task for known in self._operations.values() if not known.task.done()]
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
