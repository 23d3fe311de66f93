"""`pooldctl` as a program: what it refuses before it asks, what does its commands, and what it loads for them."""

import subprocess
import sys
from typing import Any

import pytest

from poold.ctl.parser import build
from tests.unit.ctl.conftest import Ctl
from tests.unit.ctl.ctl_poold import Poold


@pytest.mark.parametrize(
    "words",
    [
        "",
        "nonesuch",
        "sandboxes",
        "sandboxes nonesuch",
        "sandboxes create --memory-mb many",
        "sandboxes create --env novalue",
        "pool set python 9-3",
        "pool set python many",
        "events tail -n 0",
        "events tail -n 1001",
        "status --timeout -1",
        "status -- what",
        "top --interval 0",
        "sandboxes create --on-timeout explode",
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_asked(ctl: Ctl, poold: Poold, words: str) -> None:
    ran = ctl(*words.split())
    assert ran.code == 2
    assert "usage:" in ran.err
    assert poold.asked == []


def _leaves(parser: Any) -> list[str]:
    found = [parser.get_default("run")] if parser.get_default("run") else []
    for action in parser._actions:
        if action.nargs == "A...":
            found += [run for sub in action.choices.values() for run in _leaves(sub)]
    return found


def test_every_command_is_done_by_a_function_that_exists() -> None:
    import importlib

    runs = sorted(set(_leaves(build())))
    assert len(runs) > 30
    for run in runs:
        module, _, function = run.partition(".")
        assert callable(getattr(importlib.import_module(f"poold.ctl.{module}"), function)), run


def test_help_loads_nothing_that_a_person_would_have_to_wait_for() -> None:
    program = (
        "import sys\nsys.argv = ['pooldctl', '--help']\nfrom poold.ctl.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'http.client', 'websockets', 'asyncio', 'orjson', 'subprocess', 'warren'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_reading_a_list_does_not_load_what_only_a_terminal_needs(poold: Poold, environment: dict[str, str]) -> None:
    program = (
        "import sys\nfrom poold.ctl.__main__ import run\nassert run(['sandboxes', 'ls']) == 0\n"
        "heavy = {'websockets', 'asyncio', 'poold.config', 'orjson', 'warren'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, env=environment)
