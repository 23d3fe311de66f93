"""The service that the SDK's tests speak to, and the command `warren` as a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.sdk_replies import KEY
from tests.sdk.sdk_service import BARE, Service, open_service
from warren import Sandbox, Warren

LIMIT_S = 60.0
SDK = Path(__file__).parents[2] / "sdk" / "python"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Ran]


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    with open_service() as service:
        yield service


@pytest.fixture
def warren(service: Service) -> Iterator[Warren]:
    with Warren(service.url, service.key) as warren:
        yield warren


@pytest.fixture
def sandbox(warren: Warren) -> Iterator[Sandbox]:
    with warren.create(env=BARE) as sandbox:
        yield sandbox


@pytest.fixture
def environment(service: Service, tmp_path: Path) -> dict[str, str]:
    """Of a person who has a key, and nothing else of this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POOLD_", "WARREN_", "XDG_"))}
    return {**kept, **service.environment, "HOME": str(tmp_path), "PYTHONPATH": str(SDK), "TZ": "UTC"}


@pytest.fixture
def cli(environment: dict[str, str]) -> Cli:
    """Runs `warren` to its end, away from any terminal."""
    return runner(environment)


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """As `environment`, of a person who knows no gateway."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WARREN_", "XDG_"))}
    return {**kept, "HOME": str(tmp_path), "PYTHONPATH": str(SDK), "TZ": "UTC", "WARREN_API_KEY": KEY}


def runner(environment: dict[str, str], folder: Path | None = None) -> Cli:
    def run(*words: str, stdin: bytes = b"", **variables: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "warren.cli", *words],
            input=stdin,
            capture_output=True,
            env={**environment, **variables},
            cwd=folder,
            timeout=LIMIT_S,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode("utf-8", "surrogateescape"), done.stderr.decode())

    return run
