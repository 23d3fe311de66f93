"""How long things last: clean-up that cancellation does not cut short, and work that goes on beside other work."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T], *, undo: Callable[[T], object] | None = None) -> T:
    """Return what `work` returns. A cancellation waits until `work` has ended, and then `undo` gets its result.

    For undoing, and for threads: what a thread does cannot be taken back half-way, so we wait and then undo.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is None:
        return task.result()
    if task.cancelled():
        raise cancelled
    if (error := task.exception()) is not None:
        raise cancelled from error
    if undo is not None:
        undo(task.result())
    raise cancelled


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do `work` during the block and no longer. If it fails the block is ended: a restart is safer than a guess.

    An error of the block itself is raised as it is, and not in a group.
    """
    failed: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        try:
            yield
        except Exception as error:
            failed = error
        finally:
            task.cancel()
    if failed is not None:
        raise failed


async def both(first: Awaitable[object], second: Awaitable[T]) -> T:
    """Wait for two things at once and return what the second returns. A failure of one ends the other and is raised."""
    tasks = asyncio.ensure_future(first), asyncio.ensure_future(second)
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
    return tasks[1].result()
