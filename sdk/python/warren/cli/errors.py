"""Exit codes, and the failures that are the command's own."""

from warren.errors import CapacityError, NotFound, Unreachable, WarrenError

DONE = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOT_FOUND = 4
TASK_STOPPED = 5  # of `run` and `tasks follow`
DEADLINE = 124  # of a command in a sandbox, as `timeout` has it
CANNOT_RUN = 125  # a command in a sandbox was not run, or nobody knows how it ended
INTERRUPTED = 130
BROKEN_PIPE = 141

HINTS = {
    "bad_key": "run `warren login` with a key that is good",
    "bad_ticket": "the address is a host's and not a gateway's: run `warren login` with the gateway's",
    "forbidden": "this needs a key with more rights",
    "pool_exhausted": "see `warren ls` and `warren usage`, and remove what you do not need",
    "no_such_route": "what answers there does not know this call: has its address a path too many, or is it old?",
    "sandbox_paused": "warren resume ID",
    "hibernation_damaged": "`warren recover ID` gives what can be read of its disk",
    "browser_missing": "its image has no browser: use one that has, such as agent",
    "workspace_unsaved": "that is `warren rm ID --discard`",
    "workspace_damaged": "`warren workspaces restore NAME VERSION` lets one that is whole be the newest",
    "workspace_too_large": "remove what need not be saved from /workspace, or end it with `warren rm ID --discard`",
    "not_waiting": "nothing waits under that id: see `warren tasks show ID`",
}


class Failure(WarrenError):
    """The command itself cannot do it. `hint` says what helps."""

    exit_code = FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(Failure):
    """What was asked for cannot be meant."""

    exit_code = USAGE


class NoSuchThing(Failure):
    exit_code = NOT_FOUND


def exit_code_of(error: WarrenError) -> int:
    if isinstance(error, Failure):
        return error.exit_code
    if isinstance(error, Unreachable):
        return UNREACHABLE
    return NOT_FOUND if isinstance(error, NotFound) else FAILED


def hint_of(error: WarrenError) -> str:
    """What helps, if we know."""
    if isinstance(error, Failure):
        return error.hint
    if error.code == "wrong_state" and error.details.get("state") in ("paused", "hibernated"):
        return HINTS["sandbox_paused"]
    if error.code in HINTS or not isinstance(error, CapacityError) or not error.retry_after_s:
        return HINTS.get(error.code, "")
    return f"try again in {error.retry_after_s:g} s"
