"""Completion, in a real bash, and what the shells' scripts ask."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.ctl.conftest import LIMIT_S, Ctl
from tests.unit.ctl.ctl_poold import Poold, sandbox_id

ONE, ONETWO, PAUSED = (sandbox_id(name) for name in ("one", "onetwo", "paused"))
Tab = Callable[..., list[str]]


@pytest.fixture
def tab(folder: Path, environment: dict[str, str]) -> Tab:
    """What bash would offer after these words."""
    command = folder / "bin" / "pooldctl"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m poold.ctl "$@"\n')
    command.chmod(0o755)

    def tab(*words: str) -> list[str]:
        line = " ".join(shlex.quote(word) for word in ("pooldctl", *words))
        script = (
            "set -e; source <(pooldctl completion bash); complete -p pooldctl >/dev/null\n"
            f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _pooldctl\n"
            'for word in "${COMPREPLY[@]}"; do echo "$word"; done'
        )
        ran = subprocess.run(
            ["bash", "--norc", "-c", script],
            env={**environment, "PATH": f"{command.parent}:{environment['PATH']}"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        assert ran.stderr == ""
        return ran.stdout.split("\n")[:-1]

    return tab


def test_commands_and_their_parts(tab: Tab) -> None:
    assert {"status", "top", "sandboxes", "sb", "doctor"} <= set(tab(""))
    assert not [word for word in tab("") if word.startswith("_")]
    assert tab("sta") == ["status"]
    assert tab("pool", "") == ["ls", "refill", "set"]
    assert tab("--json", "ledger", "c") == ["check"]
    assert tab("--socket", "/nowhere", "aud") == ["audit"]


def test_options_and_their_values(tab: Tab) -> None:
    assert tab("sb", "create", "--mem") == ["--memory-mb"]
    assert tab("sb", "create", "--on-timeout", "") == ["destroy", "pause"]
    assert tab("completion", "") == ["bash", "fish", "zsh"]
    assert {"--json", "--help", "--destroy"} <= set(tab("drain", "--"))


def test_sandboxes_are_asked_for(tab: Tab, poold: Poold) -> None:
    assert tab("sb", "show", "") == [ONE, ONETWO, PAUSED]
    assert tab("attach", "sb-onet") == [ONETWO]
    assert tab("sandboxes", "rm", ONE, "sb-p") == [PAUSED]
    assert tab("exec", "--user", "root", "sb-p") == [PAUSED]
    assert tab("events", "tail", "--sandbox", "sb-p") == [PAUSED]
    assert tab("image", "rm", "") == ["minimal"]
    assert tab("sb", "show", ONE, "") == []
    assert tab("exec", ONE, "--", "l") == []


def test_without_poold_nothing_is_offered_and_nothing_is_said(tab: Tab) -> None:
    assert tab("sb", "show", "") == []
    assert tab("ledger", "backup", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script_that_it_understands(ctl: Ctl, shell: str) -> None:
    ran = ctl("completion", shell)
    assert ran.code == 0
    assert "pooldctl __complete --" in ran.out
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=ran.out, text=True, check=True, capture_output=True)
