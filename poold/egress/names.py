"""Names of hosts, as they are compared. No I/O."""

import re

from contract.network import HOST, MAX_NAME_CHARS

_NAME = re.compile(HOST)


def canonical(text: str) -> str | None:
    """`text` as all names are written here: small letters, no dot at the end. None if it is not a name.

    What ends in a number is no name: resolvers take `2852039166`, `0xa9fea9fe` and `169.254.43518` for addresses.
    """
    if len(text) > MAX_NAME_CHARS + 1:  # guests say names of 60 KB
        return None
    name = text.removesuffix(".").lower()
    # Looked at before: some letters of other alphabets become plain ones when they are made small.
    if not text.isascii() or len(name) > MAX_NAME_CHARS or name.startswith("*") or not _NAME.fullmatch(name):
        return None
    return name


def matches(pattern: str, name: str) -> bool:
    """Whether a canonical `name` is what a rule says. `*.a.b` is every name below `a.b`, and not `a.b` itself."""
    if pattern.startswith("*."):
        return name.endswith(pattern[1:]) and len(name) > len(pattern) - 1
    return name == pattern
