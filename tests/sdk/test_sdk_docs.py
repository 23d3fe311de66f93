"""The examples of docs/SDK.md run as they stand, and docs/CLI.md names what there is."""

import os
import re
import subprocess
import sys
from pathlib import Path

from contract.models import USUAL_SHAPES, USUAL_TIMEOUT_S, Rules
from images.recipe import known_images, load
from poold.config import Config
from tests.sdk.conftest import LIMIT_S, Cli
from warren.cli import parser
from warren.cli.parser import build

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SIZES = parser.SIZES["python"], parser.SIZES["minimal"]


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
    text = (DOCS / "CLI.md").read_text().partition("## Tasks")[0]
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"[a-z]+", re.sub(r"[A-Z]+…?|\[.*?\]|/", " ", row))}
    described -= {"ls", "create", "revoke", "rotate", "bash", "zsh", "fish"} - {"ls", "create"}
    groups = next(action for action in build()._actions if action.choices and action.dest == "==SUPPRESS==")
    assert described == {name for name in groups.choices or () if not name.startswith("_")}


def test_every_command_and_option_of_tasks_is_described() -> None:
    text = (DOCS / "CLI.md").read_text().partition("## Tasks")[2].partition("## Workspaces")[0]
    top = next(action for action in build()._actions if action.choices and action.dest == "==SUPPRESS==").choices or {}
    tasks = next(action for action in top["tasks"]._actions if action.choices and action.dest == "==SUPPRESS==")
    rows = re.findall(r"^\| (`.*?) \|", text.partition("| of `tasks`")[2], re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"[a-z]+", re.sub(r"[A-Z]+…?|\[.*?\]", " ", row))}
    assert described == set(tasks.choices or ())
    options = {name for action in top["run"]._actions for name in action.option_strings if name.startswith("--")}
    assert {name for name in options - {"--help", "--url", "--patience"} if name not in text} == set()


def test_every_command_and_option_of_workspaces_is_described() -> None:
    text = (DOCS / "CLI.md").read_text().partition("## Workspaces")[2]
    top = next(action for action in build()._actions if action.choices and action.dest == "==SUPPRESS==").choices or {}
    commands = next(action for action in top["workspaces"]._actions if action.dest == "==SUPPRESS==" and action.choices)
    rows = re.findall(r"^\| (`.*?) \|", text.partition("| of `workspaces`")[2], re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"[a-z]+", re.sub(r"[A-Z]+…?|\[.*?\]+", " ", row))}
    assert described == set(commands.choices or ())
    parsers = (commands.choices or {}).values()
    options = {name for parser in parsers for action in parser._actions for name in action.option_strings[:1]}
    assert {name for name in options - {"-h", "--json", "--url", "--patience"} if name not in text} == set()


def test_the_version_is_the_packages() -> None:
    from warren import __version__

    project = (DOCS.parent / "sdk" / "python" / "pyproject.toml").read_text()
    assert f'version = "{__version__}"' in project
    assert os.path.exists(DOCS.parent / "sdk" / "python" / "warren" / "py.typed")


def test_what_nobody_asks_for_is_told_as_it_is() -> None:
    """poold's configuration and the images decide it; whatever else says it, says the same."""
    config = Config.from_environment({}, host_memory_mb=8192, host_cpus=2, hostname="host")
    assert config.rules == Rules(timeout_sec=USUAL_TIMEOUT_S, on_timeout="destroy")
    sizes = {name: load(ROOT / "images", name).defaults for name in known_images(ROOT / "images")}
    shapes = {name: (size.vcpus, size.memory_mb, size.disk_mb) for name, size in sizes.items()}
    told = {shape.image: (shape.vcpus, shape.memory_mb, shape.disk_mb) for shape in USUAL_SHAPES}
    assert told == {name: shapes[name] for name in ("python", "minimal")}  # those that anybody begins with
    assert (USUAL_TIMEOUT_S, told) == (parser.TIMEOUT_S, parser.SIZES)


def test_what_nobody_asks_for_is_told_to_everybody(cli: Cli) -> None:
    python, minimal = (f"{cpus} vCPU, {memory} MB of memory and {disk} MB of disk" for cpus, memory, disk in SIZES)
    for page, facts in {"README.md": [python], "docs/CLI.md": [python, minimal]}.items():
        text = " ".join((ROOT / page).read_text().split())
        assert all(fact in text for fact in [*facts, f"{USUAL_TIMEOUT_S} s"]), page
    told = " ".join(cli("create", "--help").out.split())
    assert f"destroyed after {USUAL_TIMEOUT_S} s" in told
    assert all(f"{cpus} vcpu, {memory} MB, {disk} MB disk" in told for cpus, memory, disk in SIZES)
