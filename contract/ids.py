"""Ids: a kind, a hyphen, and 80 random bits in lower-case base32 with no further hyphen."""

import base64
import re
from collections.abc import Callable

from contract.errors import NotFound, shown

RANDOM_BYTES = 10
SANDBOX = re.compile(r"sb-[a-z2-7]{16}")
TASK = re.compile(r"tk-[a-z2-7]{16}")


def new_id(kind: str, entropy: Callable[[int], bytes]) -> str:
    """A new id of `kind`; two never agree as long as `entropy` is random."""
    return f"{kind}-{base64.b32encode(entropy(RANDOM_BYTES)).decode().lower()}"


def sandbox_id(text: str) -> str:
    """`text`, if it has the form of a sandbox's id: what has not cannot be found."""
    if not SANDBOX.fullmatch(text):
        raise NotFound(f"no sandbox {shown(text)}: an id is 'sb-' and 16 characters", sandbox=shown(text))
    return text


def task_id(text: str) -> str:
    """`text`, if it has the form of a task's id."""
    if not TASK.fullmatch(text):
        raise NotFound(f"no task {shown(text)}: an id is 'tk-' and 16 characters", task=shown(text))
    return text


def home_of(either: str) -> str:
    """What the ring is asked with for the id of a task or a sandbox: a task lives where its sandbox does."""
    return f"sb-{either[3:]}" if either.startswith("tk-") else either


def task_of(sandbox: str) -> str:
    """The task whose sandbox would have this id."""
    return f"tk-{sandbox[3:]}"
