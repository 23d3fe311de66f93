"""Secrets of the operator's folder: found by name, kept from others, and nobody hears what there is."""

import logging
import os
from pathlib import Path

import pytest

from contract.errors import BadField
from poold.errors import ConfigError
from poold.secret_files import MAX_BYTES, SecretFiles
from poold.tasks.secrets import gather


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kept = SecretFiles(tmp_path)
    kept.put("ann", "TOKEN", b"anns")
    kept.put("all", "TOKEN", b"everybodys")
    kept.put("all", "SHARED", "grün".encode())
    kept.put("bob", "BOBS", b"hunter2")
    return tmp_path


def told(folder: Path | None, owner: str, *names: str) -> str:
    with pytest.raises(BadField) as caught:
        gather(folder, owner, names)
    return str(caught.value)


def test_an_owners_own_comes_before_everybodys(folder: Path) -> None:
    assert gather(folder, "ann", ["TOKEN", "SHARED"]) == {"TOKEN": "anns", "SHARED": "grün"}
    assert gather(folder, "bob", ["TOKEN"]) == {"TOKEN": "everybodys"}
    assert gather(folder, "all", ["TOKEN"]) == {"TOKEN": "everybodys"}
    assert gather(None, "ann", []) == {}


def test_one_that_is_missing_and_one_of_somebody_else_are_told_alike(folder: Path) -> None:
    missing = told(folder, "ann", "TOKEN", "NONE")
    assert missing == "secrets[1]: is not a secret that this host has for you, got 'NONE'"
    assert told(folder, "ann", "TOKEN", "BOBS") == missing.replace("NONE", "BOBS")
    assert told(None, "ann", "BOBS") == missing.replace("NONE", "BOBS").replace("[1]", "[0]")


@pytest.mark.parametrize("name", ["", "token", "1A", "A-B", "../bob/BOBS", "A" * 65, "TOKEN\n", ".TOKEN", "ÄB"])
def test_what_is_no_name_is_refused_before_a_file_is_looked_at(folder: Path, name: str) -> None:
    assert "secrets[0]: must match" in told(folder, "ann", name)


@pytest.mark.parametrize("owner", ["", "..", ".", "../bob", "a/b", "-a", ".hidden"])
def test_what_is_no_owner_is_refused(folder: Path, owner: str) -> None:
    assert "owner: must be" in told(folder, owner, "TOKEN")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601])
def test_a_file_that_others_may_touch_is_refused_and_the_operator_is_told(
    folder: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "ann" / "TOKEN").chmod(mode)
    assert "is not a secret that this host has" in told(folder, "ann", "TOKEN")
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert str(folder / "ann" / "TOKEN") in record.getMessage()
    assert f"{mode:04o}" in record.getMessage()
    assert "anns" not in caplog.text


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_has_no_secrets(
    folder: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "ann").chmod(mode)
    assert "is not a secret that this host has" in told(folder, "ann", "TOKEN")
    assert "make its folder 0700" in caplog.text


def test_no_other_secret_is_given_in_place_of_a_bad_one(folder: Path) -> None:
    """Everybody's is not what the owner's own was meant to be."""
    (folder / "ann" / "TOKEN").chmod(0o644)
    with pytest.raises(BadField):
        gather(folder, "ann", ["TOKEN"])


def test_what_is_no_plain_file_is_not_read(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "ann" / "LINK").symlink_to(folder / "bob" / "BOBS")
    os.mkfifo(folder / "ann" / "PIPE", 0o600)
    (folder / "ann" / "FOLDER").mkdir(mode=0o700)
    for name in ("LINK", "PIPE", "FOLDER"):
        assert "is not a secret that this host has" in told(folder, "ann", name)
    assert len(caplog.records) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_not_read(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.chown(folder / "ann" / "TOKEN", 12_345, 12_345)
    assert "is not a secret that this host has" in told(folder, "ann", "TOKEN")
    assert "belongs to user 12345" in caplog.text


@pytest.mark.parametrize("value", [b"", b"\n", b"a\0b", b"\xff", b"a" * (MAX_BYTES + 1)])
def test_what_cannot_be_a_variable_is_not_kept_and_not_read(folder: Path, value: bytes) -> None:
    if value != b"\n":
        with pytest.raises(BadField, match="value: must"):
            SecretFiles(folder).put("ann", "NEW", value)
        assert not (folder / "ann" / "NEW").exists()
    (folder / "ann" / "NEW").write_bytes(value)
    (folder / "ann" / "NEW").chmod(0o600)
    assert "is not a secret that this host has" in told(folder, "ann", "NEW")


def test_the_end_of_the_last_line_is_not_of_the_secret(folder: Path) -> None:
    SecretFiles(folder).put("ann", "LINES", b"a\nb\n")
    assert gather(folder, "ann", ["LINES"]) == {"LINES": "a\nb"}


def test_a_folder_that_is_gone_gives_nothing_and_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "is not a secret" in told(folder / "none", "ann", "TOKEN")
    assert "must be a folder" in caplog.text
    with pytest.raises(ConfigError):
        SecretFiles(folder / "none")
