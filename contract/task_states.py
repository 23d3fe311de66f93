"""The states of a task and what moves it between them. No I/O.

Nobody else compares states to decide what is allowed: they call `step`, or ask `FINAL`.
"""

from enum import StrEnum

from contract.errors import WrongState


class TaskState(StrEnum):
    QUEUED = "queued"  # accepted; there is no room for its machine yet
    PLANNING = "planning"  # its machine is claimed, its repository is cloned
    RUNNING = "running"  # its agent works
    PAUSED = "paused"  # it waits for a person
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


class TaskEvent(StrEnum):
    PLAN = "plan"
    REQUEUE = "requeue"  # there was no room after all
    RUN = "run"
    PAUSE = "pause"
    RESUME = "resume"
    COMPLETE = "complete"
    FAIL = "fail"
    STOP = "stop"


_ENDS = {TaskEvent.FAIL: TaskState.FAILED, TaskEvent.STOP: TaskState.STOPPED}

TRANSITIONS: dict[TaskState, dict[TaskEvent, TaskState]] = {
    TaskState.QUEUED: {TaskEvent.PLAN: TaskState.PLANNING, **_ENDS},
    TaskState.PLANNING: {TaskEvent.REQUEUE: TaskState.QUEUED, TaskEvent.RUN: TaskState.RUNNING, **_ENDS},
    TaskState.RUNNING: {TaskEvent.PAUSE: TaskState.PAUSED, TaskEvent.COMPLETE: TaskState.COMPLETED, **_ENDS},
    TaskState.PAUSED: {TaskEvent.RESUME: TaskState.RUNNING, **_ENDS},
    TaskState.COMPLETED: {},
    TaskState.FAILED: {},
    TaskState.STOPPED: {},
}

FINAL = frozenset(state for state, row in TRANSITIONS.items() if not row)
ALIVE = tuple(state for state in TaskState if state not in FINAL)


def step(state: TaskState, event: TaskEvent) -> TaskState:
    """Return the state after `event`, or raise `WrongState` and change nothing."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise WrongState(f"cannot {event} a task that is {state}", state=state, event=event) from None
