"""A request that takes long is watched: when its client leaves, or its host says nothing for too long, it is given up.

Most requests are over before that would pay: asking the server whether the client is still there costs more than much
else that we do for a small request. So the watch begins after a moment.
"""

import asyncio
from types import TracebackType

from gateway.client_body import ClientBody, Receive

BEGIN_S = 0.05


class Watch:
    """A block that is cancelled when the client leaves (`has_left`) or the answer does not begin in time (`is_late`).

    Such a cancellation ends at the block: whoever comes behind it asks the two what happened.
    """

    __slots__ = ("_answer_s", "_body", "_cancelling", "_receive", "_task", "_timer", "_watching", "has_left", "is_late")

    def __init__(self, receive: Receive, body: ClientBody | None, answer_s: float) -> None:
        self._receive = receive
        self._body = body  # whoever reads it sees the client leave; we watch from its end on
        self._answer_s = answer_s  # 0: the answer has begun
        self._watching: asyncio.Task[None] | None = None
        self.has_left = False
        self.is_late = False

    async def __aenter__(self) -> "Watch":
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # we are in a coroutine
        self._task = task
        self._cancelling = task.cancelling()
        self._timer = task.get_loop().call_later(BEGIN_S, self._begin)
        return self

    def answered(self) -> None:
        """The answer has begun: from now on the host may take its time."""
        self._answer_s = 0.0
        if self._watching is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        loop = self._task.get_loop()
        self._watching = loop.create_task(self._until_left())
        if self._answer_s:
            self._timer = loop.call_later(self._answer_s, self._give_up)

    async def _until_left(self) -> None:
        if self._body is not None:
            await self._body.finished.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.has_left = True
        self._task.cancel()

    def _give_up(self) -> None:
        self.is_late = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        self._timer.cancel()
        if self._watching is None:
            return False
        if not self._watching.done():
            self._watching.cancel()
            await asyncio.wait([self._watching])
        is_ours = (self.has_left or self.is_late) and self._task.uncancel() <= self._cancelling
        return is_ours and kind is asyncio.CancelledError
