"""Where builds stand: whole or not at all, one builder at a time, and only what nobody holds is removed."""

import fcntl
import threading
from pathlib import Path

import pytest

from images import manifest
from images.recipe import Defaults, Recipe
from images.shelf import Shelf

_RECIPE = Recipe("small", None, (), (), (), 64, Defaults(1, 256, 512), ())


def _no_waiting() -> None:
    raise AssertionError("nobody else builds")


def _put(shelf: Shelf, key: str) -> Path:
    place = shelf.build("small", key)
    with shelf.open_work() as work:
        made = work / "made"
        made.mkdir()
        for name in ("vmlinux", "initramfs", "rootfs.ext4"):
            (made / name).write_bytes(name.encode())
        facts = manifest.describe(
            made,
            _RECIPE,
            key=key,
            inputs={"recipes": {}},
            built={"at": "2026-01-01T00:00:00Z"},
            kernel="vmlinux",
            initramfs="initramfs",
            rootfs="rootfs.ext4",
        )
        manifest.write(made, facts)
        shelf.put(made, place)
    return place


def test_a_build_becomes_current_and_the_former_one_is_removed(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    assert shelf.current("small") is None
    with shelf.open_for_building(_no_waiting):
        first = _put(shelf, "a" * 64)
        shelf.point("small", first)
        assert shelf.current("small") == first
        second = _put(shelf, "b" * 64)
        shelf.point("small", second)
    assert shelf.current("small") == second
    assert not first.exists()
    assert (tmp_path / "small").readlink() == Path("small-bbbbbbbbbbbb")


def test_a_former_build_that_somebody_holds_stays_until_they_let_go(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    with shelf.open_for_building(_no_waiting):
        first, second = _put(shelf, "a" * 64), _put(shelf, "b" * 64)
        with (first / manifest.FILE_NAME).open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)
            shelf.point("small", second)
            assert first.is_dir()
        shelf.point("small", second)
        assert not first.exists()


def test_builds_of_other_images_are_left_alone(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    with shelf.open_for_building(_no_waiting):
        build = _put(shelf, "a" * 64)
        other = shelf.build("small-too", "c" * 64)
        other.mkdir()
        shelf.point("small", build)
    assert other.is_dir()


def test_the_leftovers_of_a_killed_builder_are_removed(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    leftover = tmp_path / ".work-killed" / "tree"
    leftover.mkdir(parents=True)
    with shelf.open_for_building(_no_waiting):
        assert not leftover.parent.exists()


def test_a_failing_stage_leaves_no_folder(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    with shelf.open_for_building(_no_waiting):
        with pytest.raises(FileExistsError), shelf.open_work() as work:
            work.mkdir()
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "cache"]


def test_a_second_builder_says_so_and_waits_for_the_first(tmp_path: Path) -> None:
    waiting, inside = threading.Event(), threading.Event()

    def second() -> None:
        with Shelf(tmp_path).open_for_building(waiting.set):
            inside.set()

    with Shelf(tmp_path).open_for_building(_no_waiting):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(5)
        assert not inside.is_set()
    assert inside.wait(5)
    thread.join()


def test_stages_of_other_inputs_are_dropped_from_the_cache(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    old, new, other = (
        shelf.cached(stage, key * 64) for stage, key in (("root-a", "1"), ("root-a", "2"), ("root-a-b", "3"))
    )
    for folder in (old, new, other):
        folder.mkdir(parents=True)
    shelf.drop_cached("root-a", but=new)
    assert [folder.is_dir() for folder in (old, new, other)] == [False, True, True]


def test_a_manifest_says_where_the_files_are_and_what_they_contain(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    with shelf.open_for_building(_no_waiting):
        facts = manifest.read(_put(shelf, "a" * 64))
    assert (facts["format"], facts["name"], facts["key"]) == (1, "small", "a" * 64)
    assert facts["defaults"] == {"vcpus": 1, "memory_mb": 256, "disk_mb": 512}
    assert set(facts["files"]) == {facts["kernel"], facts["initramfs"], facts["rootfs"]}
    assert facts["files"]["vmlinux"]["bytes"] == len("vmlinux")
    assert len(facts["files"]["vmlinux"]["sha256"]) == 64


def test_what_is_removed_loses_its_name_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If we are cut off while files go, no half of a result has a name that says that it is whole."""
    shelf = Shelf(tmp_path)
    old = shelf.cached("root-a", "1" * 64)
    old.mkdir(parents=True)

    def cut_off(_path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("images.shelf.shutil.rmtree", cut_off)
    with pytest.raises(KeyboardInterrupt):
        shelf.drop_cached("root-a", but=tmp_path)
    assert not old.exists()
