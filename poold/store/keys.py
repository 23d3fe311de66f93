"""Keys: parts with `/` between, none of which can lead out of a folder or mean something to a file system or to S3."""

import re

from poold.store.errors import BadKey

MAX_CHARS = 800  # S3 has 1,024 bytes for the prefix and this
_PART = r"[A-Za-z0-9_@][A-Za-z0-9._@-]{0,199}"  # no hidden files: those are the folder's own
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
_PREFIX = re.compile(rf"(?:{_PART}/)*(?:{_PART})?")


def checked_key(key: str) -> str:
    if len(key) > MAX_CHARS or not _KEY.fullmatch(key):
        raise BadKey(key, "parts are letters, digits and ._@-, begin with none of .- and have / between")
    return key


def checked_prefix(prefix: str) -> str:
    """What keys may begin with; nothing, for all of them."""
    if len(prefix) > MAX_CHARS or not _PREFIX.fullmatch(prefix):
        raise BadKey(prefix, "no key begins with it")
    return prefix
