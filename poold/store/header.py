"""What stands before the content in a file of a store that is a folder: one line of one length, with its own check."""

import hashlib
import re
from dataclasses import dataclass

_LINE = re.compile(rb"warren-object 1 ([0-9]{20}) ([0-9a-f]{64}) ([0-9a-f]{32}) ([0-9a-f]{16})\n")
LENGTH = len(b"warren-object 1 ") + 20 + 1 + 64 + 1 + 32 + 1 + 16 + 1


@dataclass(frozen=True)
class Header:
    size: int  # of the content
    sha256: str
    tag: str

    def line(self) -> bytes:
        told = f"warren-object 1 {self.size:020d} {self.sha256} {self.tag} ".encode()
        return told + _check(told) + b"\n"


def parse(line: bytes) -> Header | None:
    """None: that is no header, or one that was changed."""
    match = _LINE.fullmatch(line)
    if match is None or _check(line[: match.start(4)]) != match[4]:
        return None
    return Header(int(match[1]), match[2].decode(), match[3].decode())


def _check(told: bytes) -> bytes:
    return hashlib.sha256(told).hexdigest()[:16].encode()
