"""`warren workspaces`, `warren templates`, and what `create`, `get`, `rm` and `run` say of workspaces."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.conftest import Cli, runner
from tests.sdk.sdk_replies import ID, KEY, ROW
from tests.sdk.sdk_stage import LIMIT_S, Asked, open_stage, refusal, reply
from tests.sdk.sdk_tasks import open_stand
from tests.sdk.sdk_workspaces import Shelf, open_shelf
from tests.sdk.test_sdk_tree import FILE, LINK, tar_of
from tests.terminal import open_screen

EVIL = "\x1b]0;evil\x07\x1b[2J"
ROWS = {"name": "w", "version": 2, "size_bytes": 0, "files": 0, "updated_ms": 0}
needs_zstd = pytest.mark.skipif(shutil.which("zstd") is None, reason="the program zstd makes the archives of this test")


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    with open_shelf() as shelf:
        yield shelf


@pytest.fixture
def cli(alone: dict[str, str], shelf: Shelf, tmp_path: Path) -> Cli:
    return runner({**alone, "WARREN_URL": shelf.url}, tmp_path)


def test_a_person_works_in_a_workspace_saves_it_and_comes_back(cli: Cli, shelf: Shelf) -> None:
    made = cli("create", "--workspace", "my-repl", "--template", "node")
    assert (made.code, made.out) == (0, f"{ID}\n")
    assert "workspace     my-repl, from template node, nothing saved yet\n" in cli("get", ID).out
    shelf.files["a"] = b"1"
    assert cli("workspaces", "save", ID).out == "my-repl version 1\n"
    assert cli("workspaces", "save", ID).out == "my-repl version 1, and nothing has changed since\n"
    assert cli("workspaces", "save", ID, "--json").json["is_new"] is False
    shelf.files["a"] = b"2"
    assert cli("rm", ID).out == f"{ID} stopped  my-repl version 2\n"
    shelf.state = "running"
    assert cli("create", "--workspace", "my-repl", "--json").json["workspace"]["from_version"] == 2
    assert "my-repl, from version 2, nothing saved yet\n" in cli("get", ID).out


def test_workspaces_versions_and_templates_are_listed(cli: Cli, shelf: Shelf) -> None:
    for name in "cab":
        shelf.add(name, {"f": b"x" * 3_400_000})
    shelf.add("a", {"f": b"x", "g": b"x"}, sandbox="sb-a", task="tk-a")
    shelf.add("a", {"f": b""}, restored_from=1)
    listed = cli("workspaces", "ls").out.splitlines()
    assert listed[0].split() == ["NAME", "VERSION", "FILES", "SIZE", "SAVED", "NOTE"]
    assert [line.split()[:5] for line in listed[1:]] == [
        ["a", "3", "1", "0", "B"],
        ["b", "1", "1", "3.4", "MB"],
        ["c", "1", "1", "3.4", "MB"],
    ]
    assert cli("workspaces", "ls", "-q").out == "a\nb\nc\n"
    assert [row["name"] for row in cli("workspaces", "ls", "--json").json["workspaces"]] == ["a", "b", "c"]
    versions = cli("workspaces", "versions", "a").out.splitlines()
    assert [line.split()[0] for line in versions] == ["VERSION", "3", "2", "1"]
    assert versions[1].endswith("  restored from version 1")
    assert versions[2].endswith("  tk-a")
    assert versions[3].endswith(f"  {ID}")
    told = cli("--json", "workspaces", "versions", "a", "-n", "2")
    assert ([row["version"] for row in told.json["versions"]], told.json["is_truncated"]) == ([3, 2], True)
    assert "not all" in told.err
    rows = [line.split(maxsplit=4) for line in cli("templates").out.splitlines()]
    assert (rows[1][0], rows[2][0]) == ("node", "shop")
    assert cli("templates").out.endswith("your operator\n")
    assert cli("templates", "--json").json["templates"][0]["is_shipped"] is True


def test_what_is_different_is_a_table_and_what_is_in_a_file_is_a_diff(cli: Cli, shelf: Shelf) -> None:
    shelf.add("w", {"a": b"1\n", "b": b"1\n"})
    shelf.add("w", {"a": b"1\n2\n", "bin": b"\0"})
    done = cli("workspaces", "diff", "w")
    assert done.code == 0, done.err
    assert [line.split() for line in done.out.splitlines()] == [
        ["CHANGE", "BEFORE", "AFTER", "PATH"],
        ["changed", "2", "B", "4", "B", "a"],
        ["removed", "2", "B", "-", "b"],
        ["added", "-", "1", "B", "bin"],
    ]
    assert done.err == "warren: version 1 → version 2: 3 changes\n"
    assert cli("workspaces", "diff", "w", "1", "2", "--json").json["changes"][0] == {
        "path": "a",
        "change": "changed",
        "size_before": 2,
        "size_after": 4,
    }
    for path in ("a", "/workspace/a"):
        assert cli("workspaces", "diff", "w", "1", "--path", path).out == "--- a/a\n+++ b/a\n@@ -1 +1,2 @@\n 1\n+2\n"
    binary = cli("workspaces", "diff", "w", "--path", "bin")
    assert "cannot be shown: it is no text" in binary.err
    same = cli("workspaces", "diff", "w", "2", "2")
    assert (same.out, same.err) == ("", "warren: version 2 → version 2: 0 changes\n")
    assert cli("workspaces", "diff", "w", "x").code == 2


def test_an_earlier_version_is_restored_and_all_can_be_removed(cli: Cli, shelf: Shelf) -> None:
    for name in ("v", "w"):
        shelf.add(name, {"a": b"1"})
        shelf.add(name, {"a": b"2"})
    assert cli("workspaces", "restore", "w", "1").out == "w version 3 has the files of version 1\n"
    assert cli("workspaces", "restore", "w", "9").code == 4
    assert cli("workspaces", "restore", "w", "0").code == 2
    done = cli("workspaces", "rm", "v", "nobody", "w")
    assert (done.code, done.out) == (4, "v removed, with 2 versions\nw removed, with 3 versions\n")
    assert done.err == "warren: nobody: there is no workspace 'nobody'; see `warren workspaces ls`\n"
    shelf.add("w", {})
    assert cli("workspaces", "rm", "w", "--json").json == {"workspaces": [{"name": "w", "versions": 1}]}


@pytest.mark.parametrize("words", [("versions",), ("diff",), ("restore", "1"), ("get",), ("rm",)])
def test_a_workspace_that_is_not_there_is_told_with_what_to_do(cli: Cli, words: tuple[str, ...]) -> None:
    for name in ("nobody", "..", "Ä"):
        missing = cli("workspaces", words[0], name, *words[1:])
        assert (missing.code, missing.out) == (4, "")
        assert missing.err.endswith(f"there is no workspace {name!r}; see `warren workspaces ls`\n")


@needs_zstd
def test_a_version_is_carried_here_as_it_is_or_unpacked(cli: Cli, shelf: Shelf, tmp_path: Path) -> None:
    tar = tar_of(("workspace/a", b"1", "", FILE), ("workspace/out", None, "/etc/passwd", LINK))
    packed = subprocess.run(["zstd", "-cq"], input=tar, capture_output=True, check=True).stdout
    shelf.add("w", {"a": b"1"})
    shelf.add("w", {"a": b"2"})
    shelf.archives = {("w", 1): packed, ("w", 2): b"newest"}
    assert cli("workspaces", "get", "w").out == "w-2.tar.zst  6 B\n"
    assert (tmp_path / "w-2.tar.zst").read_bytes() == b"newest"
    assert cli("workspaces", "get", "w", "-o", "-").out == "newest"
    assert cli("workspaces", "get", "w", "2", "-o", "here", "--json").json["file"] == "here"
    done = cli("workspaces", "get", "w", "1", "--extract", "it")
    assert done.code == 0, done.err
    assert (tmp_path / "it/workspace/a").read_bytes() == b"1"
    assert "left out" in done.err
    assert cli("workspaces", "get", "w", "7").code == 4
    assert not (tmp_path / "w-7.tar.zst").exists()


def test_a_sandbox_that_cannot_be_saved_is_told_with_what_to_do(cli: Cli, shelf: Shelf) -> None:
    cli("create", "--workspace", "w")
    shelf.is_store_away = True
    done = cli("rm", ID)
    assert (done.code, done.out) == (1, "")
    assert done.err.endswith("could not be saved; that is `warren rm ID --discard`\n")
    assert cli("rm", ID, "--discard").out == f"{ID} stopped\n"


def test_a_sandbox_without_a_workspace_has_none_to_save(cli: Cli) -> None:
    done = cli("workspaces", "save", ID)
    assert (done.code, done.out) == (1, "")
    assert f"{ID} has no workspace to save to; it was created without --workspace" in done.err


def test_a_version_that_cannot_be_read_is_told_among_the_others(alone: dict[str, str]) -> None:
    cli = runner(alone)
    bad = {**ROWS, "problem": f"it is{EVIL} missing"}
    version = {"version": 2, "problem": "it is missing"}
    with open_stage() as stage:
        stage.play(reply(200, {"workspaces": [bad, {**ROWS, "name": "x"}], "next": None}))
        lines = cli("workspaces", "ls", WARREN_URL=stage.url).out.splitlines()
        assert lines[1].split(maxsplit=5) == ["w", "2", "-", "-", "-", "it is]0;evil[2J missing"]
        stage.play(reply(200, bad), reply(200, {"versions": [version, {"version": 1}], "next": None}))
        assert cli("workspaces", "versions", "w", WARREN_URL=stage.url).out.splitlines()[1].endswith("it is missing")
        stage.play(reply(200, bad), refusal(500, "workspace_damaged"))
        done = cli("workspaces", "diff", "w", "--patience", "5", WARREN_URL=stage.url)
        assert (done.code, "warren workspaces restore NAME VERSION" in done.err) == (1, True)


def test_a_name_in_a_workspace_cannot_command_a_terminal(alone: dict[str, str]) -> None:
    change = {"path": f"a{EVIL}\nb", "change": "added", "size_before": None, "size_after": 1}
    told = {"from": None, "to": 2, "changes": [change], "truncated": True, "text": None}
    with open_stage() as stage:
        stage.play(reply(200, ROWS), reply(200, told))
        person = {**alone, "WARREN_URL": stage.url}
        with open_screen("warren.cli", "workspaces", "diff", "w", environment=person) as screen:
            assert screen.ends() == 0
        assert b"a]0;evil[2J b" in screen.shown
        assert b"that is not all of it" in screen.shown
        stage.play(reply(200, ROWS), reply(200, {**told, "text": f"--- a\n+++ b\n+{EVIL}x\n"}))
        with open_screen("warren.cli", "workspaces", "diff", "w", "--path", "b", environment=person) as screen:
            assert screen.ends() == 0
        assert EVIL.encode() not in screen.shown
        assert b"\x1b[32m+]0;evil[2Jx" in screen.shown


def test_a_save_that_takes_over_a_second_is_told_on_a_terminal(alone: dict[str, str]) -> None:
    held = {"name": "w", "from_version": 1, "saved_version": None, "template": None}
    is_told = threading.Event()

    def late(_: Asked) -> bytes:
        is_told.wait(LIMIT_S)
        return reply(200, {"workspace": {**held, "saved_version": 2}, "version": 2, "is_new": True})

    with open_stage() as stage:
        stage.play(reply(200, {**ROW, "workspace": held}), late)
        person = {**alone, "WARREN_URL": stage.url}
        with open_screen("warren.cli", "workspaces", "save", ID, environment=person) as screen:
            screen.sees(rb"saving \xe2\x80\xa6 [1-9]")
            is_told.set()
            assert screen.ends() == 0
    assert screen.shown.endswith(b"w version 2\r\n")


def test_a_download_that_takes_over_a_second_is_told_on_a_terminal(
    alone: dict[str, str], shelf: Shelf, tmp_path: Path
) -> None:
    shelf.add("w", {"a": b""})
    shelf.archives["w", 1] = b"some of it"
    shelf.enough = threading.Event()
    words = ("workspaces", "get", "w", "-o", str(tmp_path / "it"))
    with open_screen("warren.cli", *words, environment={**alone, "WARREN_URL": shelf.url}, columns=200) as screen:
        screen.sees(rb"[0-9.]+ k?B  [0-9.]+ B/s")
        shelf.enough.set()
        assert screen.ends() == 0
    assert (tmp_path / "it").read_bytes().startswith(b"some of itsome of it")


def test_names_templates_and_versions_are_completed(cli: Cli, shelf: Shelf) -> None:
    for name in ("alpha", "beta"):
        shelf.add(name, {})
        shelf.add(name, {"a": b""})
    assert cli("__complete", "--", "workspaces", "").out == "diff\nget\nls\nrestore\nrm\nsave\nversions\n"
    assert cli("__complete", "--", "create", "--workspace", "a").out == "alpha\n"
    assert cli("__complete", "--", "create", "--template", "").out == "node\nshop\n"
    assert cli("__complete", "--", "run", "--workspace", "").out == "alpha\nbeta\n"
    assert cli("__complete", "--", "workspaces", "rm", "alpha", "").out == "alpha\nbeta\n"
    assert cli("__complete", "--", "workspaces", "diff", "alpha", "").out == "1\n2\n"
    assert cli("__complete", "--", "--patience", "9", "workspaces", "diff", "alpha", "1", "").out == "1\n2\n"
    assert cli("__complete", "--", "workspaces", "restore", "nobody", "").out == ""
    assert cli("__complete", "--", "workspaces", "diff", "alpha", "--p").out == "--path\n--patience\n"


def test_a_task_is_given_a_workspace(alone: dict[str, str]) -> None:
    with open_stand() as stand:
        done = runner(alone)(
            "run", "x", "--agent", "mock", "--workspace", "w", "-d", WARREN_URL=stand.url, WARREN_API_KEY=KEY
        )
    assert done.code == 0, done.err
    assert stand.asked[0][2]["workspace"] == "w"
