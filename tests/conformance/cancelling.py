"""Cancellation at a place that can be named and repeated."""

import asyncio
import types
from collections.abc import Coroutine, Generator, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def places() -> Iterator[int]:
    """Every early wait, where one step follows the other, and ever fewer of the later ones, where steps are long.

    The early ones come several times: a process that was just started goes its own way, and is elsewhere each time.
    """
    place = 0
    while True:
        yield from [place] * (5 if place < 8 else 1)
        place += 1 + place // 8


async def cancelled_at(place: int, work: Coroutine[Any, Any, T]) -> T | None:
    """Run `work` and cancel it where it waits for the time `place`, counted from 0. None if it was cancelled there."""

    async def counted() -> T:
        return await _cancelling(place, work)

    task = asyncio.create_task(counted())
    await asyncio.wait({task})
    return None if task.cancelled() else task.result()


@types.coroutine
def _cancelling(place: int, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Drive `work` by hand, to see each of its waits."""
    waits = 0
    error: BaseException | None = None
    while True:
        try:
            waiting = work.send(None) if error is None else work.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        if waits == place:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        waits += 1
        error = None
        try:
            yield waiting
        except BaseException as thrown:
            error = thrown
