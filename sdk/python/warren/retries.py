"""When the same request may be sent again, and after how long. No I/O: whoever waits does so elsewhere."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from warren.errors import CapacityError, PoolExhausted, Unreachable, WarrenError, WorkspaceUnsaved

PASSING = (502, 503, 504)  # statuses of a moment


@dataclass(frozen=True)
class Retries:
    """How often and how long. `attempts=1` never repeats anything."""

    attempts: int = 5
    first_s: float = 0.25
    longest_s: float = 8.0
    patience_s: float = 60.0  # with one request, all its waits together


class Attempts:
    """The attempts at one request."""

    def __init__(
        self, retries: Retries, *, is_repeatable: bool, chance: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._retries = retries
        self._is_repeatable = is_repeatable
        self._chance = chance
        self._failed = 0
        self._waited_s = 0.0

    def wait_s(self, error: WarrenError) -> float:
        """For how long to wait before the next attempt, or `error` again if there is to be none."""
        self._failed += 1
        if not self._is_repeatable or not is_passing(error) or self._failed >= self._retries.attempts:
            raise error
        most = min(self._retries.longest_s, self._retries.first_s * 2 ** (self._failed - 1))
        wait_s = self._chance(most / 2, most)  # with chance, or all who failed together come back together
        if isinstance(error, CapacityError) and error.retry_after_s is not None:
            wait_s += error.retry_after_s
        if self._waited_s + wait_s > self._retries.patience_s:
            raise error
        self._waited_s += wait_s
        return wait_s

    def got_on(self) -> None:
        """Something came of it: what fails from here on fails for the first time."""
        self._failed = 0
        self._waited_s = 0.0


def is_passing(error: WarrenError) -> bool:
    """It may be gone by itself in a moment. A full pool is not: only its owner can empty it. What could not be saved
    is tried again by the host itself, and whoever asked is to know.
    """
    if isinstance(error, PoolExhausted | WorkspaceUnsaved):
        return False
    if isinstance(error, Unreachable):
        return True
    return error.status in PASSING or (error.status == 429 and error.retry_after_s is not None)  # type: ignore[attr-defined]
