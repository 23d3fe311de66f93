"""The tree itself: short files, short functions, a docstring in every module, and documents that tell the truth."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from contract.__about__ import __version__

ROOT = Path(__file__).parents[2]
PROGRAMS = ("contract", "gateway", "poold", "guest", "images")
MAX_FILE_LINES = 400
MAX_P90_LINES = 30
OURS = {".py", ".md", ".toml", ".sql", ".sh", ".yml", ".yaml", ".json", ".lock", ".cfg", ""}
# The folders of whoever built this must not be in what was built. Written so that this file is clean itself.
FOREIGN = ("/" + "work/", "shared" + "/specs")
PROMISE = re.compile(
    r"^\s*- \*\*(?P<number>S[\w.]+?)\.?\*\*(?P<text>.*?)(?=^\s*- \*\*S|^#|\Z)", re.MULTILINE | re.DOTALL
)
TEST = re.compile(r"(?P<file>tests/[\w/]+\.py)(?:::(?P<name>\w+))?")


@cache
def tree() -> list[Path]:
    """Every file that belongs to the project: what git knows, and what it would add."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:  # a copy without its history
        hidden = {"build", ".venv", ".git", "__pycache__"}
        files = [path for path in ROOT.rglob("*") if not hidden & set(path.relative_to(ROOT).parts)]
    return [path for path in files if path.is_file()]


def modules(*folders: str) -> list[Path]:
    return [path for path in tree() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[tuple[str, int]]:
    """Every function with the number of its lines, without its docstring."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            told = node.body[0] if ast.get_docstring(node) is not None else None
            docstring = 0 if told is None else (told.end_lineno or 0) - told.lineno + 1
            found.append((f"{named(path)}:{node.name}", (node.end_lineno or 0) - node.lineno + 1 - docstring))
    return found


def test_the_programs_are_there() -> None:
    for program in PROGRAMS:
        assert modules(program), program


def test_no_file_of_a_program_is_too_long() -> None:
    too_long = {named(path): len(path.read_text().splitlines()) for path in modules(*PROGRAMS)}
    assert {name: lines for name, lines in too_long.items() if lines > MAX_FILE_LINES} == {}


@pytest.mark.parametrize("program", PROGRAMS)
def test_nine_functions_of_ten_are_short(program: str) -> None:
    lengths = sorted(lines for path in modules(program) for _, lines in functions(path))
    assert lengths[len(lengths) * 9 // 10] <= MAX_P90_LINES


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        named(path)
        for path in modules(*PROGRAMS, "tests")
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert silent == []


def test_no_file_names_a_folder_of_its_builders() -> None:
    found = []
    for path in tree():
        if path.suffix in OURS or path.name == "Makefile":
            text = path.read_text(errors="replace")
            found += [f"{named(path)}: {words}" for words in FOREIGN if words in text]
    assert found == []


def test_test_files_have_names_of_their_own() -> None:
    """Without packages, two test files of one name would hide each other."""
    names = [path.name for path in modules("tests") if path.name.startswith("test_")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def version_of(*words: str) -> str:
    """What a program says of itself, with its name before it."""
    done = subprocess.run([sys.executable, "-m", *words, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_every_program_is_of_one_version() -> None:
    programs = {"poold": "poold", "poold.ctl": "pooldctl", "gateway": "gateway", "warren.cli": "warren"}
    told = {module: version_of(module) for module in programs}
    assert told == {module: f"{name} {__version__}" for module, name in programs.items()}
    assert version_of("warren_guest") == __version__
    for file in ("sdk/python/pyproject.toml", "guest/pyproject.toml"):
        assert tomllib.loads((ROOT / file).read_text())["project"]["version"] == __version__, file
    assert f"## {__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_documents_name_only_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong = []
    for path in tree():
        if path.suffix == ".md":
            text = path.read_text()
            commands = re.findall(r"`(?:sudo )?make ([a-z][a-z-]*)[^`]*`", text)
            for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
                commands += re.findall(r"^\$? ?(?:sudo )?make ([a-z][a-z-]*)", block, re.MULTILINE)
            wrong += [f"{named(path)}: make {target}" for target in commands if target not in targets]
    assert wrong == []


@pytest.mark.parametrize(("program", "prefix"), [("poold", "POOLD"), ("gateway", "GATEWAY")])
def test_every_setting_is_in_the_operators_document_and_no_other_is(program: str, prefix: str) -> None:
    files = [*(ROOT / program).glob("*config.py"), *(ROOT / program).glob("places.py")]
    read = {name for path in files for name in re.findall(rf'"({prefix}_[A-Z_]+)"', path.read_text())}
    rows = re.findall(r"^\| (`[A-Z_`, ]+`) \|", (ROOT / "docs" / "OPERATING.md").read_text(), re.MULTILINE)
    told = [name for row in rows for name in re.findall(rf"`({prefix}_[A-Z_]+)`", row)]
    assert sorted(told) == sorted(read)


def test_a_gateways_usage_has_every_setting() -> None:
    read = set(re.findall(r'"(GATEWAY_[A-Z_]+)"', (ROOT / "gateway" / "config.py").read_text()))
    assert set(re.findall(r"GATEWAY_[A-Z_]+", (ROOT / "gateway" / "__main__.py").read_text())) == read


def test_documents_link_only_to_files_that_exist() -> None:
    wrong = []
    for path in tree():
        if path.suffix == ".md":
            for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", path.read_text()):
                if not (path.parent / target).exists():
                    wrong.append(f"{named(path)}: {target}")
    assert wrong == []


def specification() -> str:
    path = ROOT / "docs" / "SPECIFICATION.md"
    if not path.exists():
        pytest.skip("docs/SPECIFICATION.md is not written yet")
    return path.read_text()


def test_every_promise_has_a_number_of_its_own() -> None:
    numbers = [match["number"] for match in PROMISE.finditer(specification())]
    assert numbers
    assert len(numbers) == len(set(numbers))


def test_every_promise_names_a_test() -> None:
    without = [match["number"] for match in PROMISE.finditer(specification()) if not TEST.search(match["text"])]
    assert without == []


def test_every_test_that_a_promise_names_exists() -> None:
    missing = [match[0] for match in TEST.finditer(specification()) if not exists(match["file"], match["name"])]
    assert missing == []


def exists(file: str, name: str | None) -> bool:
    path = ROOT / file
    text = path.read_text() if path.exists() else None
    return text is not None and (name is None or bool(re.search(rf"^\s*(async )?def {name}\(", text, re.MULTILINE)))
