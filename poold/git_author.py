"""Whose name stands on commits."""

import re
from dataclasses import dataclass

from contract.settings import BadSetting

# What git takes in a name and an address: no angle brackets, nothing that ends a line.
_SEEN = r"[^<>\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
_AUTHOR = re.compile(
    rf"(?P<name>(?!\s){_SEEN}{{1,128}}?) <(?P<email>(?:(?![\s@]){_SEEN}){{1,64}}@(?:(?![\s@]){_SEEN}){{1,190}})>"
)


@dataclass(frozen=True)
class GitAuthor:
    name: str
    email: str


USUAL = GitAuthor("Warren", "agent@warren.invalid")


def read_author(name: str, text: str | None) -> GitAuthor:
    """What the setting `name` says; the usual one if it is not set."""
    if text is None:
        return USUAL
    match = _AUTHOR.fullmatch(text)
    if match is None:
        raise BadSetting(f"{name} must be like 'Name <mail@example.com>', got {text!r}")
    return GitAuthor(match["name"], match["email"])
