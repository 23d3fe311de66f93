"""When a task's failures count, and when its time does."""

import pytest

from contract.states import State
from contract.task_states import TaskState
from poold.tasks.runner import CALM_S, PATIENCE, in_a_row
from poold.tasks.steering import is_working


def test_only_failures_in_a_row_use_up_the_patience_with_a_machine() -> None:
    failures = 0
    for _ in range(10 * PATIENCE):
        failures = in_a_row(failures, CALM_S)
    assert failures == 1
    assert [in_a_row(before, 0.1) for before in (0, 1, PATIENCE - 1)] == [1, 2, PATIENCE]


@pytest.mark.parametrize("state", TaskState)
def test_the_time_of_a_task_stands_still_while_its_machine_is_on_disk_whatever_its_state(state: TaskState) -> None:
    assert not is_working(state, State.PAUSED)
    works = state in (TaskState.PLANNING, TaskState.RUNNING)
    assert is_working(state, None) == is_working(state, State.RUNNING) == works
