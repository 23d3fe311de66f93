"""What can be wrong with a workspace in the store. Nothing is deleted for it: somebody may mend it, or want to look."""

from contract.errors import FaultError


class Damaged(FaultError):
    """An object is missing, is not what was written, or is another cluster's, owner's or version's of poold."""

    code = "workspace_damaged"

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"the object {key!r} in the store cannot be used: {problem}; nothing was deleted", key=key)
        self.key = key
        self.problem = problem
