"""A poold that is played, and the real command as a process of its own."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.ctl.ctl_poold import Poold, serve
from tests.unit.ctl.ctl_terminal import LIMIT_S, Attach, Guests, attached, serve_terminals


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Ctl = Callable[..., Ran]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a unix socket's path has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="ctl-") as name:
        yield Path(name)


@pytest.fixture
def poold(folder: Path) -> Iterator[Poold]:
    poold = Poold()
    with serve(folder / "poold.sock", poold):
        yield poold


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    """Without what the machine's own POOLD_ variables would change."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POOLD_", "WARREN_"))}
    return {**kept, "POOLD_RUN_DIR": str(folder), "XDG_STATE_HOME": str(folder / "xdg"), "TZ": "UTC"}


@pytest.fixture
def ctl(environment: dict[str, str]) -> Ctl:
    """Runs pooldctl to its end, away from any terminal."""

    def run(*words: str, stdin: bytes = b"", **variables: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "poold.ctl", *words],
            input=stdin,
            capture_output=True,
            env={**environment, **variables},
            timeout=LIMIT_S,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode("utf-8", "surrogateescape"), done.stderr.decode())

    return run


@pytest.fixture
def guests(folder: Path) -> Iterator[Guests]:
    """The terminals that are opened, in order."""
    with serve_terminals(folder / "poold.sock") as opened:
        yield opened


@pytest.fixture
def attach(environment: dict[str, str]) -> Attach:
    return functools.partial(attached, environment)
