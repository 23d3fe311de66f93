"""What tests of git in a guest share: a request to clone, and a look at what could be seen of a secret."""

import os
import tempfile
from pathlib import Path
from typing import Any

from tests.unit.guest.client import Client, Reply

AUTHOR = {"name": "Warren", "email": "agent@example.org"}
SECRET = "pa55-w0rd-that-nobody-sees"
CREDENTIALS = {"username": "bot", "password": SECRET}


def some_operation() -> str:
    return f"op-{os.urandom(8).hex()}"


async def clone(guest: Client, folder: Path, url: str, operation: str = "", **more: Any) -> Reply:
    """Clone to `folder/repo`."""
    operation = operation or some_operation()
    body = {"operation": operation, "url": url, "path": str(folder / "repo"), "author": AUTHOR, **more}
    return await guest.call("POST", "/git/clone", body)


def everything_readable() -> str:
    """The command lines and surroundings of every process that we may look at, but not of our own."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            for name in ("cmdline", "environ"):
                try:
                    found.append((process / name).read_bytes().decode(errors="replace"))
                except OSError:
                    continue
    return "\n".join(found)


def left_of(folder: Path) -> list[str]:
    """What is in the workspace, and which folders of git's are in the temporary place."""
    found = (*folder.iterdir(), *Path(tempfile.gettempdir()).glob("warren-git-*"))
    return sorted(str(path) for path in found)
