"""The states of a sandbox and what moves it between them. No I/O.

Nobody else compares states to decide what is allowed: they call `step`, or ask `LIVE` and `FINAL`.
"""

from enum import StrEnum

from contract.errors import WrongState


class State(StrEnum):
    PENDING = "pending"  # written down, nothing done yet
    STARTING = "starting"  # a machine is being claimed
    RUNNING = "running"
    PAUSED = "paused"  # its memory is on the host's disk
    HIBERNATED = "hibernated"  # its memory, or its files alone, are in the object store
    STOPPED = "stopped"
    ERROR = "error"


class Event(StrEnum):
    CLAIM = "claim"
    READY = "ready"
    PAUSE = "pause"
    HIBERNATE = "hibernate"
    RESUME = "resume"
    PUT_BACK = "put_back"  # a resume that came to nothing: its memory is on disk as before
    FETCH = "fetch"  # what hibernated is on the host's disk again
    RETURN = "return"  # a resume of files alone that came to nothing: they are in the store as before
    STOP = "stop"
    FAIL = "fail"


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.PENDING: {Event.CLAIM: State.STARTING, Event.STOP: State.STOPPED, Event.FAIL: State.ERROR},
    State.STARTING: {
        Event.READY: State.RUNNING,
        Event.PUT_BACK: State.PAUSED,
        Event.RETURN: State.HIBERNATED,
        Event.STOP: State.STOPPED,
        Event.FAIL: State.ERROR,
    },
    State.RUNNING: {
        Event.PAUSE: State.PAUSED,
        Event.HIBERNATE: State.HIBERNATED,  # its files alone
        Event.STOP: State.STOPPED,
        Event.FAIL: State.ERROR,
    },
    State.PAUSED: {
        Event.RESUME: State.STARTING,
        Event.HIBERNATE: State.HIBERNATED,
        Event.STOP: State.STOPPED,
        Event.FAIL: State.ERROR,
    },
    State.HIBERNATED: {
        Event.FETCH: State.PAUSED,
        Event.RESUME: State.STARTING,  # in another machine, with its files alone
        Event.STOP: State.STOPPED,
        Event.FAIL: State.ERROR,
    },
    # A sandbox that failed can still be removed by its owner; its reason stays in the ledger.
    State.ERROR: {Event.STOP: State.STOPPED},
    State.STOPPED: {},
}

# A machine may run for a sandbox in these states, and in no other.
LIVE = frozenset({State.PENDING, State.STARTING, State.RUNNING})
# A resume brings these back; with all that ran, unless only files were kept.
ASLEEP = frozenset({State.PAUSED, State.HIBERNATED})
FINAL = frozenset(state for state, row in TRANSITIONS.items() if not row)


def step(state: State, event: Event) -> State:
    """Return the state after `event`, or raise `WrongState` and change nothing."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise WrongState(f"cannot {event} a sandbox that is {state}", state=state, event=event) from None
