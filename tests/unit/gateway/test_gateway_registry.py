"""The registry's folder: what is read, what is not, and how keys are written."""

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from contract.errors import NotFound
from contract.hosts import Host
from contract.keys import Key, key_id
from gateway.errors import RegistryUnreachable
from gateway.registry.folder import Folder

KEY = Key(key_id("wrn_" + "a" * 40), "red")
HOST = Host("a", "http://127.0.0.1:7070")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    registry = Folder(tmp_path)
    assert registry.read().keys == {}
    registry.add_key(KEY)
    assert registry.read().keys == {KEY.id: KEY}
    revoked = replace(KEY, active=False)
    registry.add_key(revoked)
    assert registry.read().keys == {KEY.id: revoked}


def test_a_key_leaves_nothing_beside_its_record_and_the_lock(tmp_path: Path) -> None:
    Folder(tmp_path).add_key(KEY)
    assert {path.name for path in (tmp_path / "keys").iterdir()} == {f"{KEY.id}.json", ".lock"}


def test_of_two_changes_at_once_none_is_lost(tmp_path: Path) -> None:
    Folder(tmp_path).add_key(KEY)
    begun, go_on = threading.Event(), threading.Event()

    def slowly(key: Key) -> Key:
        begun.set()
        assert go_on.wait(10)
        return key.ending(5)

    slow = threading.Thread(target=lambda: Folder(tmp_path).change_key(KEY.id, slowly))
    quick = threading.Thread(target=lambda: Folder(tmp_path).change_key(KEY.id, Key.revoked))
    slow.start()
    assert begun.wait(10)
    quick.start()
    go_on.set()
    slow.join()
    quick.join()
    (key,) = Folder(tmp_path).read().keys.values()
    assert (key.expires_ms, key.active) == (5, False)


def test_a_key_that_is_not_there_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        Folder(tmp_path).change_key(KEY.id, Key.revoked)


def test_hosts_are_read_and_forgotten_with_their_files(tmp_path: Path) -> None:
    (tmp_path / "hosts").mkdir()
    path = tmp_path / "hosts" / "a.json"
    path.write_bytes(HOST.encode())
    registry = Folder(tmp_path)
    assert registry.read().hosts == {"a": HOST}
    beside = path.with_name("new")
    beside.write_bytes(replace(HOST, beat=2).encode())
    beside.replace(path)
    assert registry.read().hosts["a"].beat == 2
    path.unlink()
    assert registry.read().hosts == {}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"name": 1}', b"\xff" * 100, b" " * (2 << 20)])
def test_what_is_no_record_is_not_there(tmp_path: Path, data: bytes) -> None:
    for folder, name in (("keys", f"{KEY.id}.json"), ("hosts", "a.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(data)
    found = Folder(tmp_path).read()
    assert (found.keys, found.hosts) == ({}, {})


def test_a_record_in_a_file_of_another_name_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / f"{'0' * 64}.json").write_bytes(KEY.encode())
    (tmp_path / "keys" / "README").write_bytes(KEY.encode())
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / "b.json").write_bytes(HOST.encode())
    os.mkfifo(tmp_path / "hosts" / "c.json")
    found = Folder(tmp_path).read()
    assert (found.keys, found.hosts) == ({}, {})


def test_only_what_changed_is_read_again(tmp_path: Path) -> None:
    registry = Folder(tmp_path)
    registry.add_key(KEY)
    first = registry.read().keys[KEY.id]
    assert registry.read().keys[KEY.id] is first


@pytest.mark.parametrize("gone", [".", "keys", "hosts"])
def test_a_folder_that_is_gone_is_not_empty_but_cannot_be_read(tmp_path: Path, gone: str) -> None:
    folder = tmp_path / "registry"
    (folder / "hosts").mkdir(parents=True)
    registry = Folder(folder)
    registry.add_key(KEY)
    assert registry.read().keys
    shutil.rmtree(folder / gone)
    with pytest.raises(RegistryUnreachable):
        registry.read()


def test_a_registry_that_was_never_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RegistryUnreachable):
        Folder(tmp_path / "registry").read()


def test_no_key_is_written_in_place_of_a_folder_that_is_gone(tmp_path: Path) -> None:
    registry = Folder(tmp_path)
    registry.add_key(KEY)
    registry.read()
    shutil.rmtree(tmp_path / "keys")
    with pytest.raises(RegistryUnreachable):
        registry.add_key(KEY)
    assert not (tmp_path / "keys").exists()
