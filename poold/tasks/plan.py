"""What is to be done about a task now: from what is known to actions. No I/O.

A task is paused while a caller wants it to be, or while a person is asked something. Its machine is put on disk when
a caller paused it, when it must not spend on, and when a question has been open for long. An answer brings it back.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from contract.states import State
from contract.task_states import TaskState
from contract.tasks import Waiting


class Act(Enum):
    """What is done."""

    PAUSE = auto()  # the task
    SLEEP = auto()  # its machine goes to disk
    WAKE = auto()  # it comes back
    RESUME = auto()  # the task
    DELIVER = auto()  # answers, to whoever waits for them


@dataclass(frozen=True)
class Facts:
    state: TaskState
    sandbox: State | None  # None: there is none yet
    is_held: bool  # a caller wants it paused
    is_ending: bool
    open: tuple[Waiting, ...]
    has_answers: bool  # that had no effect yet
    pause_after_ms: int
    awake_since_ms: int  # when somebody else woke the machine: questions are young again then
    can_save: bool
    now_ms: int


def plan(facts: Facts) -> list[Act]:
    acts: list[Act] = []
    waits = (facts.is_held or bool(facts.open)) and not facts.is_ending
    pauses = facts.state is TaskState.RUNNING and waits
    # Who asks something is paused at once. Who is paused by a caller works until its machine is on disk.
    if pauses and facts.open:
        acts.append(Act.PAUSE)
    sleeps = must_sleep(facts)
    if facts.sandbox is State.RUNNING and sleeps:
        acts.append(Act.SLEEP)
    if pauses and not facts.open:
        acts.append(Act.PAUSE)
    if facts.sandbox is State.PAUSED and not sleeps and (not facts.open or facts.has_answers or facts.is_ending):
        acts.append(Act.WAKE)
    runs = (facts.sandbox is State.RUNNING or Act.WAKE in acts) and Act.SLEEP not in acts
    if facts.state is TaskState.PAUSED and not waits and runs and not facts.is_ending:
        acts.append(Act.RESUME)
    if facts.has_answers and runs and not facts.is_ending:
        acts.append(Act.DELIVER)
    return acts


def must_sleep(facts: Facts) -> bool:
    """Whether its machine is to be on disk. Where it cannot be, it runs on."""
    if facts.is_ending or not facts.can_save:
        return False
    if facts.is_held or any(each.kind == "spend" for each in facts.open):
        return True
    # With an answer to deliver it is awake for that, and goes back to sleep for what is still open.
    oldest = _oldest(facts)
    return not facts.has_answers and oldest is not None and oldest + facts.pause_after_ms <= facts.now_ms


def next_ms(facts: Facts) -> int | None:
    """When to look again, if nothing happens before."""
    oldest = _oldest(facts)
    if oldest is None or facts.is_ending or not facts.can_save or facts.sandbox is not State.RUNNING:
        return None
    return oldest + facts.pause_after_ms


def _oldest(facts: Facts) -> int | None:
    since = _since(facts.open)
    return None if since is None else max(since, facts.awake_since_ms)


def _since(waiting: Iterable[Waiting]) -> int | None:
    return min((each.since_ms for each in waiting), default=None)
