"""The thread that does the work in namespaces, and how the event loop waits for it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from queue import SimpleQueue
from typing import TypeVar

from poold.errors import NetError
from poold.lifetimes import finish
from poold.net.namespace import StrandedError

T = TypeVar("T")


class Worker:
    """One thread that runs one job after the other, in the order asked for.

    So an undo that is asked for after its step always finds the step ended, also when nobody waited for it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_stopping = False
        self._start()

    async def run(self, job: Callable[[], T]) -> T:
        """Return what `job` returns. If cancelled, a job that has begun goes on, and one that has not never begins."""
        if self._is_stopping:
            raise NetError("use", "a slot", hint="the slots are closed")
        return await asyncio.wrap_future(self._put(job))

    async def stop(self) -> None:
        """End the thread after the jobs asked for so far. Later ones are refused."""
        self._is_stopping = True
        await asyncio.wrap_future(self._put(lambda: None))
        self._jobs.put(None)
        self._thread.join()

    def _put(self, job: Callable[[], T]) -> Future[T]:
        outcome: Future[T] = Future()

        def work() -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            try:
                outcome.set_result(job())
            except BaseException as exc:
                outcome.set_exception(exc)
                if isinstance(exc, StrandedError):
                    raise

        self._jobs.put(work)
        return outcome

    def _start(self) -> None:
        # A daemon thread, so that a loop that died without `stop` does not keep the process.
        self._thread = threading.Thread(target=self._work, name="net", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except StrandedError:
                # The loop starts the successor: a thread begins in the namespace of the thread that starts it.
                self._loop.call_soon_threadsafe(self._start)
                return


@asynccontextmanager
async def open_worker() -> AsyncIterator[Worker]:
    """Have a worker during the block. After it, all its jobs have ended and its thread is gone."""
    worker = Worker()
    try:
        yield worker
    finally:
        await finish(worker.stop())
