"""A request that takes long is watched: when its client leaves, or its host says nothing for too long, it is given up.

Most requests are over before that would pay: asking the server whether the client is still there costs more than much
else that we do for a small request. So the watch begins after a moment.
"""

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import cast

from gateway.client_body import ClientBody, Receive
from gateway.upstream.later import AT_ONCE, Later


class Watch:
    """A block that is cancelled when the client leaves (`has_left`) or the answer does not begin in time (`is_late`).

    Such a cancellation ends at the block: whoever comes behind it asks the two what happened.
    """

    __slots__ = (
        "_answer_s", "_body", "_cancelling", "_later", "_receive", "_task", "_timer", "_watching",
        "has_left", "is_late",
    )  # fmt: skip

    def __init__(self, later: Later, receive: Receive, body: ClientBody | None, answer_s: float) -> None:
        self._later = later
        self._receive = receive
        self._body = body  # whoever reads it sees the client leave; we watch from its end on
        self._answer_s = answer_s  # 0: the answer has begun
        self._watching: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.has_left = False
        self.is_late = False

    def __aenter__(self) -> Awaitable[None]:
        self._task = cast("asyncio.Task[None]", asyncio.current_task(self._later.loop))
        self._cancelling = self._task.cancelling()
        self._later.add(self)
        return AT_ONCE

    def answered(self) -> None:
        """The answer has begun: from now on the host may take its time."""
        self._answer_s = 0.0
        if self._timer is not None:
            self._timer.cancel()

    def begin(self) -> None:
        loop = self._later.loop
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

    def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> Awaitable[bool | None]:
        self._later.discard(self)
        return AT_ONCE if self._watching is None else self._end(self._watching, kind)

    async def _end(self, watching: asyncio.Task[None], kind: type[BaseException] | None) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        if not watching.done():
            watching.cancel()
            await asyncio.wait([watching])
        is_ours = (self.has_left or self.is_late) and self._task.uncancel() <= self._cancelling
        return is_ours and kind is asyncio.CancelledError
