"""How a command can fail, and the exit code that tells it."""

DONE = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOT_FOUND = 4
DEADLINE = 124  # of a command in a sandbox, as `timeout` has it
CANNOT_RUN = 125  # a command in a sandbox was not run, or nobody knows how it ended
INTERRUPTED = 130
BROKEN_PIPE = 141


class CtlError(Exception):
    """A command failed. `message` is for a person; `hint`, if there is one, says what helps."""

    exit_code = FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(CtlError):
    """What was asked for cannot be meant."""

    exit_code = USAGE


class Unreachable(CtlError):
    """There is no poold to speak to, or it went away."""

    exit_code = UNREACHABLE


class NoSuchThing(CtlError):
    exit_code = NOT_FOUND


class Refused(CtlError):
    """poold understood, and said no."""

    def __init__(self, status: int, code: str, message: str) -> None:
        hint = "this poold does not know the call: is it older than pooldctl?" if code == "no_such_route" else ""
        super().__init__(f"{code}: {message}", hint=hint)
        self.status = status
        self.code = code
        self.exit_code = NOT_FOUND if code == "not_found" else FAILED
