"""The examples of docs/SDK.md run as they stand, and docs/CLI.md names what there is."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.sdk.conftest import LIMIT_S
from warren.cli.parser import build

DOCS = Path(__file__).parents[2] / "docs"


def test_the_examples_of_the_client_run(environment: dict[str, str], tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "SDK.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 5
    script = tmp_path / "examples.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "big").stat().st_size == 1_000_000


def test_every_command_is_described_and_every_described_one_exists() -> None:
    text = (DOCS / "CLI.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"[a-z]+", re.sub(r"[A-Z]+…?|\[.*?\]|/", " ", row))}
    described -= {"ls", "create", "revoke", "rotate", "bash", "zsh", "fish"} - {"ls", "create"}
    groups = next(action for action in build()._actions if action.choices and action.dest == "==SUPPRESS==")
    assert described == {name for name in groups.choices or () if not name.startswith("_")}


def test_the_version_is_the_packages() -> None:
    from warren import __version__

    project = (DOCS.parent / "sdk" / "python" / "pyproject.toml").read_text()
    assert f'version = "{__version__}"' in project
    assert os.path.exists(DOCS.parent / "sdk" / "python" / "warren" / "py.typed")
