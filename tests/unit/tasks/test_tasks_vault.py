"""What must never be in a row is in a file that only its owner reads, and gone with its task."""

import os
from pathlib import Path

import pytest

from poold import files
from poold.errors import HostFault
from poold.tasks.urls import Credentials
from poold.tasks.vault import Kept, Vault

ONE, TWO = "tk-" + "a" * 16, "tk-" + "b" * 16
SECRETS = Kept(Credentials("ann", "hunter2"), {"KEY": "hunter3"}, "hunter4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tasks"


@pytest.fixture
def vault(folder: Path) -> Vault:
    return Vault(folder)


def everything_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_what_is_put_is_there_for_its_owner_only(vault: Vault, folder: Path) -> None:
    vault.put(ONE, SECRETS)
    assert vault.get(ONE) == SECRETS
    assert vault.get(TWO) == Kept()
    assert (folder / ONE / "vault").stat().st_mode & 0o777 == 0o600
    assert (folder / ONE).stat().st_mode & 0o777 == 0o700


def test_nothing_shows_a_secret() -> None:
    assert "hunter" not in f"{SECRETS!r} {SECRETS} {SECRETS.credentials!r} {[SECRETS]}"


def test_a_repetition_has_what_the_first_had(vault: Vault) -> None:
    vault.put(ONE, SECRETS)
    vault.copy(ONE, TWO)
    vault.remove(ONE)
    assert (vault.get(ONE), vault.get(TWO)) == (Kept(), SECRETS)


def test_removed_is_without_a_trace_also_what_was_half_written(
    vault: Vault, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault.put(ONE, SECRETS)
    (folder / ONE / ".vault.0123abcd").write_bytes(b"hun")
    vault.remove(ONE)
    vault.remove(ONE)
    assert everything_in(folder) == []
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        vault.put(ONE, SECRETS)
    vault.remove(ONE)
    assert everything_in(folder) == []


def test_other_files_of_a_task_stay(vault: Vault, folder: Path) -> None:
    vault.put(ONE, SECRETS)
    (folder / ONE / "other").touch()
    vault.remove(ONE)
    assert everything_in(folder) == [folder / ONE, folder / ONE / "other"]


def test_after_the_end_only_what_deliveries_are_signed_with_is_left(vault: Vault, folder: Path) -> None:
    vault.put(ONE, SECRETS)
    vault.keep_webhook(ONE)
    assert vault.get(ONE) == Kept(webhook_secret="hunter4")
    vault.put(ONE, Kept(env={"KEY": "hunter3"}))
    vault.keep_webhook(ONE)
    assert everything_in(folder) == []


def test_a_sweep_leaves_only_what_is_of_the_living(vault: Vault, folder: Path) -> None:
    assert vault.sweep([]) == []
    for task_id in (ONE, TWO):
        vault.put(task_id, SECRETS)
    (folder / "notes").mkdir()
    assert vault.sweep([TWO]) == [ONE]
    assert (vault.get(ONE), vault.get(TWO)) == (Kept(), SECRETS)
    assert (folder / "notes").is_dir()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"env": {}}', b'{"credentials": 1, "env": {}}', b"null"])
def test_a_damaged_file_is_told_without_what_is_in_it(vault: Vault, folder: Path, data: bytes) -> None:
    (folder / ONE).mkdir(parents=True)
    files.put(folder / ONE / "vault", data)
    with pytest.raises(HostFault, match=ONE) as caught:
        vault.get(ONE)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("name", ["", "..", "tk-../../../etc/pass", "sb-" + "a" * 16, ONE + "/x", ONE + "\n"])
def test_only_a_tasks_id_is_a_name(vault: Vault, name: str) -> None:
    for ask in (vault.get, vault.remove, vault.keep_webhook):
        with pytest.raises(ValueError, match="no task's id"):
            ask(name)
