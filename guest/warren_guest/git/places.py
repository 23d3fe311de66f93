"""Where git's things are: in a machine, and on a developer's computer, which is not ours to change."""

import os
from dataclasses import dataclass
from pathlib import Path

# The real git where the image has moved it, so that a wrapper can stand in its place.
MOVED = "/usr/lib/warren/git"

# The name of a unix socket has 107 bytes at most, and ours is in there.
_RUNTIME_LIMIT = 90


@dataclass(frozen=True, slots=True)
class Places:
    """`keeper` is the account that holds credentials; None: the guest's own user does everything itself.

    `copies` is where bare copies live for the time of an operation, `runtime` where the policy for pushes and the
    socket for them are; None: made when needed. `config` is git's system-wide configuration; None: left alone.
    """

    keeper: str | None = None
    copies: str | None = None
    runtime: str | None = None
    config: str | None = None


MACHINE = Places("warren-git", "/var/lib/warren-git", "/run/warren/git", "/etc/gitconfig")


def beside(socket: Path) -> Places:
    """For a guest on a developer's computer: beside its own socket, so that it goes where that goes."""
    runtime = f"{socket.absolute()}.git"
    return Places(runtime=runtime if len(os.fsencode(runtime)) <= _RUNTIME_LIMIT else None)


def real_git() -> str:
    """The git that ours use: never the wrapper."""
    return MOVED if Path(MOVED).exists() else "git"
