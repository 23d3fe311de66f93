"""Operations of several steps: each stands beside its undo, which accepts that its step did all, some or none."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from contract.errors import WarrenError
from poold.lifetimes import finish

log = logging.getLogger("poold.steps")

Act = Callable[[], Awaitable[Any]]
Undo = Callable[[BaseException], Awaitable[Any]]


@dataclass(frozen=True)
class Step:
    """`undo` is told what went wrong. Without one, there is nothing to undo."""

    name: str
    do: Act
    undo: Undo | None = None


async def run_steps(operation: str, subject: str, steps: Sequence[Step]) -> None:
    """Do the steps in order. If one fails or is cancelled, all that were begun are undone, last first.

    An undo that fails does not keep the others from being tried: what it leaves is found by the next start.
    """
    begun: list[Step] = []
    try:
        for step in steps:
            begun.append(step)
            await step.do()
    except BaseException as error:
        await finish(_undo(operation, subject, begun, error))
        raise


async def _undo(operation: str, subject: str, begun: list[Step], error: BaseException) -> None:
    for step in reversed(begun):
        if step.undo is not None:
            try:
                await step.undo(error)
            except WarrenError as problem:
                told = {"operation": operation, "subject": subject, "step": step.name, "why": str(problem)}
                log.error("a step could not be undone", extra=told)
