"""What can be wrong with what is in the store. Nothing is deleted for it: somebody may mend it, or want to look."""

from contract.errors import FaultError


class Damaged(FaultError):
    """A part of something hibernated is missing, or is not what was written."""

    code = "hibernation_damaged"

    def __init__(self, part: str, problem: str) -> None:
        super().__init__(f"{part} in the store is damaged: {problem}; nothing was deleted", part=part)
        self.part = part
        self.problem = problem


class NotOurs(FaultError):
    """What is in the store is whole, and not for this host: of another version, another cluster, another sandbox."""

    code = "hibernation_refused"

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key} in the store is not for this host: {problem}; nothing was deleted", key=key)
