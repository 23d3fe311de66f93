"""Ids: a kind, a hyphen, and 80 random bits in lower-case base32 with no further hyphen."""

import base64
import re
from collections.abc import Callable

from contract.errors import NotFound, shown

RANDOM_BYTES = 10
SANDBOX = re.compile(r"sb-[a-z2-7]{16}")


def new_id(kind: str, entropy: Callable[[int], bytes]) -> str:
    """A new id of `kind`; two never agree as long as `entropy` is random."""
    return f"{kind}-{base64.b32encode(entropy(RANDOM_BYTES)).decode().lower()}"


def sandbox_id(text: str) -> str:
    """`text`, if it has the form of a sandbox's id: what has not cannot be found."""
    if not SANDBOX.fullmatch(text):
        raise NotFound(f"no sandbox {shown(text)}: an id is 'sb-' and 16 characters", sandbox=shown(text))
    return text
