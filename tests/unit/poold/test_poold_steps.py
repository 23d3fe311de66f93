"""Operations of several steps: what was begun is undone, last first, whatever happens meanwhile."""

import asyncio
import logging

import pytest

from contract.errors import CapacityError
from poold.errors import EngineError
from poold.steps import Act, Step, Undo, run_steps

BROKEN = EngineError("doing", "a step", hint="the test says so")


class Trace:
    """Makes steps that write down what is done and undone, and with which error."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.errors: list[BaseException] = []
        self.may_go_on = asyncio.Event()
        self.waits = asyncio.Event()

    def step(self, name: str, *, fails: Exception | None = None, held: bool = False) -> Step:
        return Step(name, self._do(name, fails, held), self.undo(name))

    def undo(self, name: str, *, fails: Exception | None = None, held: bool = False) -> Undo:
        async def undo(error: BaseException) -> None:
            self.errors.append(error)
            await self._do(f"no {name}", fails, held)()

        return undo

    def _do(self, name: str, fails: Exception | None, held: bool) -> Act:
        async def do() -> None:
            self.done.append(name)
            await asyncio.sleep(0)
            if held:
                self.waits.set()
                await self.may_go_on.wait()
                self.done.append(f"{name}, to its end")
            if fails is not None:
                raise fails

        return do


async def test_steps_are_done_in_order_and_nothing_is_undone() -> None:
    trace = Trace()
    await run_steps("test", "it", [trace.step("a"), trace.step("b"), trace.step("c")])
    assert trace.done == ["a", "b", "c"]


async def test_no_steps_are_fine() -> None:
    await run_steps("test", "it", [])


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_a_failure_undoes_what_was_begun_last_first(position: int) -> None:
    trace = Trace()
    names = ["a", "b", "c"]
    steps = [trace.step(name, fails=BROKEN if index == position else None) for index, name in enumerate(names)]
    with pytest.raises(EngineError) as raised:
        await run_steps("test", "it", steps)
    assert raised.value is BROKEN
    begun = names[: position + 1]
    assert trace.done == [*begun, *(f"no {name}" for name in reversed(begun))]
    assert trace.errors == [BROKEN] * len(begun)  # each undo is told what went wrong


async def test_a_step_without_an_undo_is_passed_over() -> None:
    trace = Trace()
    steps = [trace.step("a"), Step("b", trace.step("b").do), trace.step("c", fails=BROKEN)]
    with pytest.raises(EngineError):
        await run_steps("test", "it", steps)
    assert trace.done == ["a", "b", "c", "no c", "no a"]


async def test_an_error_that_nobody_foresaw_is_undone_too() -> None:
    trace = Trace()
    with pytest.raises(ZeroDivisionError):
        await run_steps("test", "it", [trace.step("a"), trace.step("b", fails=ZeroDivisionError())])
    assert trace.done == ["a", "b", "no b", "no a"]


async def test_an_undo_that_fails_keeps_no_other_from_running_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    trace = Trace()
    stuck = Step("b", trace.step("b").do, trace.undo("b", fails=CapacityError("no room to undo")))
    with caplog.at_level(logging.ERROR), pytest.raises(EngineError) as raised:
        await run_steps("test", "it", [trace.step("a"), stuck, trace.step("c", fails=BROKEN)])
    assert raised.value is BROKEN  # the first error is the one that counts
    assert trace.done == ["a", "b", "c", "no c", "no b", "no a"]
    (record,) = caplog.records
    told = vars(record)
    assert (told["operation"], told["subject"], told["step"], told["why"]) == ("test", "it", "b", "no room to undo")


async def test_a_step_that_is_cancelled_half_way_is_undone_with_those_before_it() -> None:
    trace = Trace()
    running = asyncio.create_task(run_steps("test", "it", [trace.step("a"), trace.step("b", held=True)]))
    await trace.waits.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert trace.done == ["a", "b", "no b", "no a"]
    assert all(isinstance(error, asyncio.CancelledError) for error in trace.errors)


async def test_a_cancellation_during_the_undo_waits_for_its_end() -> None:
    trace = Trace()
    slow = Step("b", trace.step("b").do, trace.undo("b", held=True))
    running = asyncio.create_task(run_steps("test", "it", [trace.step("a"), slow, trace.step("c", fails=BROKEN)]))
    await trace.waits.wait()
    for _ in range(3):  # once is an accident; who asks again gets the same answer
        running.cancel()
        await asyncio.sleep(0)
    assert not running.done()
    trace.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert trace.done[-3:] == ["no b", "no b, to its end", "no a"]


async def test_a_cancellation_between_two_steps_undoes_the_first() -> None:
    trace = Trace()

    async def cancel_ourselves() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    steps = [Step("a", cancel_ourselves, trace.undo("a")), trace.step("b")]
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(run_steps("test", "it", steps))
    assert trace.done == ["b", "no b", "no a"]  # it is noticed where the second waits
