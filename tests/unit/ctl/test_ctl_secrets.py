"""`pooldctl secrets`: values come in by standard input, go to a file that nobody else reads, and never come out."""

from pathlib import Path

import pytest

from tests.unit.ctl.conftest import Ctl, Ran


@pytest.fixture
def kept(folder: Path) -> Path:
    (folder / "secrets").mkdir()
    return folder / "secrets"


@pytest.fixture
def secrets(ctl: Ctl, kept: Path) -> Ctl:
    """The commands, on that folder. No poold runs."""

    def run(*words: str, **more: object) -> Ran:
        return ctl("secrets", *words, **{"POOLD_SECRETS": str(kept), **more})

    return run


def test_a_value_goes_from_standard_input_to_a_private_file(secrets: Ctl, kept: Path) -> None:
    ran = secrets("set", "TOKEN", "--owner", "ann", stdin=b"hunter2\n")
    assert (ran.code, ran.err) == (0, "")
    path = kept / "ann" / "TOKEN"
    assert path.read_bytes() == b"hunter2"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert "hunter2" not in ran.out
    assert secrets("set", "TOKEN", "--owner", "ann", stdin=b"two\nlines\n", POOLD_SECRETS=str(kept)).code == 0
    assert path.read_bytes() == b"two\nlines"


def test_names_are_listed_and_values_never(secrets: Ctl, kept: Path) -> None:
    assert secrets("ls", "--json").json == {"secrets": []}
    for owner in ("bob", "ann", "all"):
        secrets("set", "TOKEN", "--owner", owner, stdin=b"hunter2")
    (kept / "bob" / "TOKEN").chmod(0o644)
    (kept / "notes.txt").write_text("none of ours")
    (kept / "ann" / "notes.txt").write_text("none of ours")
    rows = secrets("ls", "--json").json["secrets"]
    assert [(row["owner"], row["name"]) for row in rows] == [("all", "TOKEN"), ("ann", "TOKEN"), ("bob", "TOKEN")]
    assert [row["problem"] is None for row in rows] == [True, True, False]
    assert "mode 0644" in rows[2]["problem"]
    table = secrets("ls").out
    assert [line.split()[:3] for line in table.splitlines()[:2]] == [
        ["OWNER", "NAME", "STATE"],
        ["all", "TOKEN", "ready"],
    ]
    assert "hunter2" not in table
    assert [row["owner"] for row in secrets("ls", "--owner", "ann", "--json").json["secrets"]] == ["ann"]


def test_removed_is_gone_and_what_is_not_there_is_not_found(secrets: Ctl, kept: Path) -> None:
    secrets("set", "TOKEN", "--owner", "ann", stdin=b"hunter2")
    assert secrets("rm", "TOKEN", "--owner", "ann", "--json").json == {
        "owner": "ann",
        "name": "TOKEN",
        "state": "removed",
    }
    assert not (kept / "ann" / "TOKEN").exists()
    for owner in ("ann", "nobody"):
        ran = secrets("rm", "TOKEN", "--owner", owner)
        assert (ran.code, ran.out) == (4, "")
        assert "has no secret TOKEN" in ran.err


@pytest.mark.parametrize(
    ("words", "value", "said"),
    [
        ("set TOKEN", b"x", "--owner"),
        ("set token --owner ann", b"x", "name: must match"),
        ("set ../X --owner ann", b"x", "name: must match"),
        ("set TOKEN --owner ../x", b"x", "owner: must be"),
        ("set TOKEN --owner ann", b"", "value: must not be empty"),
        ("set TOKEN --owner ann", b"\n", "value: must not be empty"),
        ("set TOKEN --owner ann", b"hunter2\0", "value: must be UTF-8 without a NUL"),
        ("set TOKEN --owner ann", b"hunter2" * 10_000, "value: must have at most 65536 bytes"),
        ("rm token --owner ann", b"", "name: must match"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_kept(
    secrets: Ctl, kept: Path, words: str, value: bytes, said: str
) -> None:
    ran = secrets(*words.split(), stdin=value)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "hunter2" not in ran.err
    assert [path for path in kept.rglob("*") if path.is_file()] == []


def test_the_folder_is_named_by_option_or_environment_and_must_be_there(ctl: Ctl, kept: Path) -> None:
    words = ("secrets", "set", "TOKEN", "--owner", "all")
    assert ctl(*words, "--dir", str(kept), stdin=b"x").code == 0
    unnamed, missing = ctl(*words, stdin=b"x"), ctl(*words, "--dir", str(kept / "none"), stdin=b"x")
    assert (unnamed.code, missing.code) == (2, 1)
    assert "POOLD_SECRETS" in unnamed.err
    assert not (kept / "none").exists()
