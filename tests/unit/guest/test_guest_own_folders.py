"""Folders and files that the guest makes for itself are nobody else's to write, whatever its umask is."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from warren_guest.accounts import Account
from warren_guest.browser.launch import Trust, write_policy
from warren_guest.git import scratch
from warren_guest.git.guard import _make_folder, write_author
from warren_guest.git.service import _write_safe
from warren_guest.run_outputs import Outputs


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    """As in a machine, where modes of new files are exact."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """What below `folder` somebody else could write."""
    return [str(path) for path in folder.rglob("*") if stat.S_IMODE(path.lstat().st_mode) & 0o022]


def test_nobody_else_can_put_something_into_the_place_of_the_folder_of_outputs(tmp_path: Path) -> None:
    kept = Outputs(str(tmp_path / "lib" / "warren" / "outputs")).keep("words")
    assert kept is not None
    assert Path(kept).read_text() == "words"
    assert open_to_others(tmp_path) == []
    assert stat.S_IMODE(Path(kept).parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(kept).stat().st_mode) == 0o600


def test_an_output_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "1.txt").symlink_to(tmp_path / "elsewhere")
    Outputs(str(tmp_path)).keep("words")
    assert not (tmp_path / "elsewhere").exists()


def test_nobody_else_can_put_something_into_the_place_of_the_policy_for_pushes(tmp_path: Path) -> None:
    _make_folder(str(tmp_path / "run" / "warren" / "git"))
    assert open_to_others(tmp_path) == []


def test_nobody_else_can_write_what_tells_git_and_the_browser_whom_to_believe(tmp_path: Path) -> None:
    write_author(str(tmp_path / "gitconfig"), "A", "a@b.c")
    _write_safe(str(tmp_path / "safe.config"))
    write_policy(Trust(str(tmp_path / "none.pem"), str(tmp_path / "chromium" / "policies" / "managed")))
    assert (tmp_path / "chromium" / "policies" / "managed" / "warren.json").is_file()
    assert open_to_others(tmp_path) == []


def test_a_folder_that_was_given_away_is_not_changed_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(0o755)
    folder = tmp_path / "scratch"

    def give_away(path: str, _uid: int, _gid: int) -> None:
        Path(path).rmdir()
        Path(path).symlink_to(victim)

    monkeypatch.setattr(scratch.os, "geteuid", lambda: 0)
    monkeypatch.setattr(scratch.os, "chown", give_away)
    account = Account("user", 1000, 1000, (), "/home/user", "/bin/sh")
    scratch._make(None, str(folder), account, 0o700)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o755
