"""The worker thread is always at home between two jobs, and a cancellation never loses what a job made."""

import asyncio
import os
import threading

import pytest

from poold.lifetimes import finish
from poold.net.namespace import StrandedError, fresh
from poold.net.worker import open_worker


def own_namespace() -> str:
    return os.readlink("/proc/thread-self/ns/net")


async def test_the_thread_comes_home_after_every_job() -> None:
    def visit() -> str:
        with fresh():
            return own_namespace()

    def fail() -> None:
        with fresh():
            raise ValueError("inside")

    async with open_worker() as worker:
        assert await worker.run(visit) != own_namespace()
        assert await worker.run(own_namespace) == own_namespace()
        with pytest.raises(ValueError, match="inside"):
            await worker.run(fail)
        assert await worker.run(own_namespace) == own_namespace()


async def test_a_stranded_thread_is_not_used_again() -> None:
    def strand() -> int:
        fresh().__enter__()  # and no way back
        raise StrandedError("return from", "nowhere")

    async with open_worker() as worker:
        first = await worker.run(threading.get_native_id)
        stranding = asyncio.create_task(worker.run(strand))
        after = asyncio.create_task(worker.run(lambda: (threading.get_native_id(), own_namespace())))
        with pytest.raises(StrandedError):
            await stranding
        second, where = await after
        assert second != first
        assert where == own_namespace()


def test_the_main_thread_never_leaves() -> None:
    with pytest.raises(RuntimeError, match="main thread"), fresh():
        pass


async def test_jobs_run_in_the_order_asked_for() -> None:
    done: list[int] = []
    async with open_worker() as worker:
        await asyncio.gather(*(worker.run(lambda n=n: done.append(n)) for n in range(50)))
    assert done == list(range(50))


async def test_the_loop_goes_on_while_the_worker_works() -> None:
    gate = threading.Event()
    async with open_worker() as worker:
        job = asyncio.create_task(worker.run(gate.wait))
        await asyncio.sleep(0)
        assert not job.done()
        gate.set()
        assert await job


async def test_a_cancellation_waits_for_the_end_and_undoes_the_result() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    undone: list[str] = []

    async def work() -> str:
        begun.set()
        await gate.wait()
        return "made"

    task = asyncio.create_task(finish(work(), undo=undone.append))
    await begun.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == ["made"]


async def test_an_error_is_not_lost_when_cancelled() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await gate.wait()
        raise ValueError("broken")

    task = asyncio.create_task(finish(work()))
    await begun.wait()
    task.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, ValueError)
