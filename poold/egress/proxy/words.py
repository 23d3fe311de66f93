"""What a proxy says to the operator, in its log."""

import contextlib
import sys


def say(line: str) -> None:
    """One line. Where there is no room for it there is none, and nothing else happens."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"egress: {line}\n")
        sys.stderr.flush()
