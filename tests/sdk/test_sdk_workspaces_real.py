"""Workspaces on the real service: what the documents tell people to type, and a real archive."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.sdk.conftest import LIMIT_S, Cli
from tests.sdk.sdk_service import BARE
from tests.sdk.test_sdk_workspaces_cli import needs_zstd
from warren import NotFound, Warren

ROOT = Path(__file__).parents[2]
WARREN = f'warren() {{ "{ROOT}/.venv/bin/python" -m warren.cli "$@"; }}\n'


def shell(environment: dict[str, str], folder: Path, script: str) -> str:
    argv = ["bash", "-c", f"set -eu\n{WARREN}{script}"]
    done = subprocess.run(
        argv, env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def forget(warren: Warren, name: str) -> None:
    for each in warren.workspaces.list():
        if each.name == name:
            each.delete()


def test_what_the_cli_page_says_of_workspaces_works(environment: dict[str, str], tmp_path: Path) -> None:
    text = (ROOT / "docs" / "CLI.md").read_text().partition("## Workspaces")[2]
    block = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    script = "".join(line.removeprefix("$ ") for line in block.splitlines(keepends=True) if line.startswith("$ "))
    shown = shell(environment, tmp_path, script)
    for line in block.splitlines():
        assert line.startswith("$ ") or line in shown, shown
    assert "-one\n+two\n" in shown
    assert (tmp_path / "files.tar.zst").stat().st_size > 0


def test_what_the_readme_says_of_workspaces_works(environment: dict[str, str], warren: Warren, tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    script = next(block for block in blocks if "--workspace" in block).replace(".venv/bin/warren", "warren")
    try:
        shown = shell(environment, tmp_path, script)
    finally:
        forget(warren, "my-repl")
    assert re.search(r"stopped  my-repl version 1\n", shown), shown


@needs_zstd
def test_files_go_into_a_workspace_and_come_back_byte_for_byte(cli: Cli, warren: Warren, tmp_path: Path) -> None:
    with warren.create(workspace="bytes", env=BARE) as sandbox:
        sandbox.run(r"mkdir -p d/e; printf '\xff\x00ab' > d/e/f; ln -s e/f d/link; chmod 700 d/e/f", check=True)
    with warren.create(workspace="bytes", env=BARE) as again:
        assert again.info.workspace is not None
        assert again.info.workspace.from_version == 1
        assert again.run("stat -c %a d/e/f; readlink d/link; wc -c < d/e/f").stdout.split() == ["700", "e/f", "4"]
    assert again.info.workspace is not None
    assert again.info.workspace.saved_version is None  # nothing was changed, so nothing was saved
    done = cli("workspaces", "get", "bytes", "--extract", str(tmp_path / "here"))
    assert done.code == 0, done.err
    assert (tmp_path / "here/workspace/d/e/f").read_bytes() == b"\xff\0ab"
    assert warren.workspaces.get("bytes").delete() == 1
    with pytest.raises(NotFound):
        warren.workspaces.get("bytes")


def test_a_task_works_in_a_workspace_and_leaves_its_files_there(cli: Cli, warren: Warren) -> None:
    prompt = "Say hello.\nedit hello.txt hello"
    done = cli("run", prompt, "--agent", "mock", "--workspace", "work")
    assert done.code == 0, done.out + done.err
    assert "mock  workspace work\n" in done.out
    assert "workspace work is saved as version 1" in done.out
    workspace = warren.workspaces.get("work")
    (version,) = workspace.versions()
    task = warren.tasks.get(version.task or "")
    assert task.info.workspace == "work"
    assert re.search(r"^workspace +work$", cli("tasks", "show", task.id).out, re.MULTILINE)
    assert workspace.diff(path="hello.txt").text is not None
    workspace.delete()
