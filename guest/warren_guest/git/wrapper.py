"""Puts the wrapper into the place of git, where the image has moved git out of the way for it."""

import os
import sys
from pathlib import Path

from warren_guest.git.places import MACHINE, MOVED

POLICY = "policy.json"
_HERE = Path(__file__).parent


def install(at: str = "/usr/bin/git", real: str = MOVED, runtime: str | None = None) -> bool:
    """Make `at` the wrapper of `real`. False if there is no `real`: an image without git, or an older one."""
    if not Path(real).exists():
        return False
    text = wrapper_text(real, runtime or MACHINE.runtime or "")
    beside = f"{at}.warren"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o755)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    Path(beside).replace(at)
    return True


def wrapper_text(real: str, runtime: str) -> str:
    """The wrapper with its paths. None of them is anybody's to choose, so none has a quote in it."""
    places = {
        "@REAL@": real,
        "@POLICY@": f"{runtime}/{POLICY}",
        "@PYTHON@": sys.executable,
        "@CLIENT@": str(_HERE / "push_client.py"),
    }
    text = (_HERE / "wrapper.sh").read_text()
    for mark, value in places.items():
        if "'" in value:
            raise ValueError(f"{value!a} cannot be in a script")
        text = text.replace(mark, value)
    return text
