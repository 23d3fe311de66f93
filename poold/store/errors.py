"""What can go wrong with the store. Who asks learns whether to try again, to look elsewhere, or to tell a person."""

from contract.errors import CapacityError, FaultError, shown


class NoObject(FaultError):
    """There is nothing under this key."""

    code = "no_object"

    def __init__(self, key: str) -> None:
        super().__init__(f"the store has no object {key!r}", key=key)
        self.key = key


class Conflict(FaultError):
    """Somebody else has written this object: it is not as the writer knew it. Nothing was changed."""

    status = 409
    code = "store_conflict"

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"the object {key!r} in the store {why}", key=key)
        self.key = key


class Corrupt(FaultError):
    """An object is not what was written. It is left as it is, for a person to look at."""

    code = "store_corrupt"

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"the object {key!r} in the store is damaged: {problem}; nothing was deleted", key=key)
        self.key = key
        self.problem = problem


class BadKey(FaultError):
    """What cannot be a key. Nothing was looked at."""

    code = "bad_key"

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"the store has no key {shown(key)}: {problem}", key=shown(key))


class WrongContent(FaultError):
    """What was to be written is not what was said of it before. Nothing was changed."""

    code = "store_wrong_content"

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"the content for the object {key!r} is not what it was said to be: {problem}", key=key)
        self.key = key


class Full(CapacityError):
    """The store has no room. Nothing of what was being written remains."""

    code = "store_full"


class Unreachable(CapacityError):
    """The store did not answer, or not in time. What was being written may have been written or not."""

    code = "store_unreachable"


class Refused(FaultError):
    """The store said no: wrong credentials, no such bucket, a right that is missing. Trying again does not help."""

    code = "store_refused"


class WrongStore(FaultError):
    """This store is another cluster's, or cannot do what hosts need of it."""

    code = "wrong_store"


def too_large(key: str, size: int) -> Refused:
    return Refused(f"the object {key!r} has {size} bytes: that many are read and written in pieces", key=key)
