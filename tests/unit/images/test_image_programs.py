"""Other programs: a missing one is named with its package, and a failing one is heard."""

import subprocess
import sys
from pathlib import Path

import pytest

from images import programs
from images.errors import ImageError

_REPOSITORY = Path(__file__).resolve().parents[3]


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs.PACKAGES, "no-such-program", "its-package")
    with pytest.raises(ImageError, match=r"no-such-program(.|\n)*apt-get install .*its-package"):
        programs.check_installed()


def test_a_failing_program_is_heard() -> None:
    with pytest.raises(ImageError, match=r"sh failed with status 3:\n  no room"):
        programs.run(["sh", "-c", "echo no room >&2; exit 3"])


def test_programs_do_not_see_the_callers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARREN_SECRET", "x")
    assert b"WARREN_SECRET" not in programs.run(["env"])


def _images(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "images", *arguments]
    return subprocess.run(argv, cwd=_REPOSITORY, env=environment, capture_output=True, text=True, check=False)


def test_an_unknown_image_is_refused_with_the_known_ones() -> None:
    done = _images("build", "minimal", "tiny")
    assert done.returncode == 1
    assert done.stderr.startswith("images: there is no image called 'tiny'\n  known: agent, ")
    assert done.stdout == ""


def test_an_image_that_is_not_built_is_listed_and_has_no_path(tmp_path: Path) -> None:
    assert "not built" in _images("ls", WARREN_IMAGES=str(tmp_path)).stdout
    done = _images("path", "minimal", WARREN_IMAGES=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "python -m images build minimal" in done.stderr


def test_a_sources_file_that_is_not_there_is_refused() -> None:
    done = _images("build", "minimal", WARREN_APT_SOURCES="/nowhere.list")
    assert done.returncode == 1
    assert "WARREN_APT_SOURCES = '/nowhere.list'" in done.stderr
