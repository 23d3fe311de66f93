"""`finish`: a cancellation waits for the work's end, and then it is a cancellation still. `both`: one end for two.

`beside`: as long as the block and no longer, and a failure ends the block.
"""

import asyncio

import pytest

from poold.lifetimes import beside, both, finish


class Work:
    """Something that ends when the test says so."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.may_end = asyncio.Event()
        self.ended = False

    async def run(self, outcome: object = "result") -> object:
        self.started.set()
        await self.may_end.wait()
        self.ended = True
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


async def rounds() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_without_a_cancellation_the_result_comes_back_and_nothing_is_undone() -> None:
    undone: list[object] = []
    work = Work()
    work.may_end.set()
    assert await finish(work.run(), undo=undone.append) == "result"
    assert undone == []


async def test_without_a_cancellation_an_error_comes_out() -> None:
    work = Work()
    work.may_end.set()
    with pytest.raises(ValueError, match="broken"):
        await finish(work.run(ValueError("broken")))


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_a_cancellation_waits_for_the_end_and_undoes(times: int) -> None:
    work, undone = Work(), []
    task = asyncio.create_task(finish(work.run(), undo=undone.append))
    await work.started.wait()
    for _ in range(times):
        task.cancel()
        await rounds()
        assert not task.done()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.ended
    assert undone == ["result"]


async def test_a_cancelled_work_that_fails_is_a_cancellation_with_its_cause() -> None:
    work, undone = Work(), []
    task = asyncio.create_task(finish(work.run(ValueError("broken")), undo=undone.append))
    await work.started.wait()
    task.cancel()
    await rounds()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, ValueError)
    assert undone == []


async def test_work_that_cancels_itself_is_a_cancellation() -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await finish(gives_up())


async def test_nested_finishes_wait_for_the_innermost() -> None:
    work = Work()

    async def outer() -> object:
        return await finish(finish(work.run()))

    task = asyncio.create_task(outer())
    await work.started.wait()
    task.cancel()
    await rounds()
    assert not task.done()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.ended


async def test_a_timeout_around_it_is_a_timeout_still() -> None:
    work = Work()
    asyncio.get_running_loop().call_later(0.05, work.may_end.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await finish(work.run())
    assert work.ended


async def test_both_run_at_once_and_the_second_is_what_is_wanted() -> None:
    first, second = Work(), Work()
    waiting = asyncio.create_task(both(first.run("first"), second.run("second")))
    await first.started.wait()
    await second.started.wait()
    second.may_end.set()
    await rounds()
    assert not waiting.done()
    first.may_end.set()
    assert await waiting == "second"


@pytest.mark.parametrize("failing", [0, 1])
async def test_a_failure_of_one_of_both_ends_the_other(failing: int) -> None:
    works = Work(), Work()
    outcomes: list[object] = ["fine", "fine"]
    outcomes[failing] = ValueError("the test says so")
    waiting = asyncio.create_task(both(works[0].run(outcomes[0]), works[1].run(outcomes[1])))
    await works[1].started.wait()
    works[failing].may_end.set()
    with pytest.raises(ValueError, match="the test says so"):
        await waiting
    assert not works[1 - failing].ended


async def test_cancelling_both_cancels_each() -> None:
    first, second = Work(), Work()
    waiting = asyncio.create_task(both(first.run(), second.run()))
    await second.started.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    first.may_end.set()
    second.may_end.set()
    await rounds()
    assert not first.ended
    assert not second.ended


async def test_what_goes_on_beside_a_block_ends_with_it() -> None:
    work = Work()
    async with beside(work.run()):
        await work.started.wait()
    assert not work.ended
    work.may_end.set()
    await rounds()
    assert not work.ended


async def test_what_fails_beside_a_block_ends_the_block() -> None:
    work = Work()

    async def block() -> None:
        async with beside(work.run(ValueError("no"))):
            await work.started.wait()
            work.may_end.set()
            await asyncio.get_running_loop().create_future()

    with pytest.raises(ExceptionGroup) as caught:
        await block()
    assert caught.group_contains(ValueError, match="no")
