"""Keys: the same inputs give the same key, and there is no input that does not change it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from images.debian import Sources
from images.errors import ImageError
from images.guest import guest_hashes, guest_version
from images.kernel import kernel_key
from images.keys import files_under, hashes_of, key_of
from images.recipe import Defaults, NpmPackage, Recipe, Supplied, User
from images.rootfs import finishing_script, root_key

_USER = User("user", 1000, "/home/user", "/bin/bash", sudo=True)
_RECIPE = Recipe(
    name="small",
    base=None,
    packages=("bash", "git"),
    users=(_USER,),
    setup=("mkdir /workspace",),
    size_mb=64,
    defaults=Defaults(1, 256, 512),
    files=(),
)
_PACKAGE = NpmPackage("tool", "1.0.0", "sha512-A", {"a": "/opt/a"})
_SUPPLIED = Supplied("WARREN_TOOL", "/opt/tool", ("tool",))
_HOST = Sources(override=None)


def test_a_key_depends_on_values_and_not_on_their_order() -> None:
    assert key_of(a=1, b={"x": 1, "y": 2}) == key_of(b={"y": 2, "x": 1}, a=1)
    assert key_of(a=1) != key_of(a="1")
    assert key_of(a=["xy"]) != key_of(a=["x", "y"])


@pytest.mark.parametrize(
    "other",
    [
        replace(_RECIPE, packages=("bash",)),
        replace(_RECIPE, setup=()),
        replace(_RECIPE, users=(replace(_USER, sudo=False),)),
        replace(_RECIPE, users=(replace(_USER, uid=1001),)),
        replace(_RECIPE, npm=(_PACKAGE,)),
        replace(_RECIPE, supplied=(replace(_SUPPLIED, archive=Path("/tool.tar.gz"), sha256="a"),)),
    ],
)
def test_whatever_is_in_the_root_changes_its_key(other: Recipe) -> None:
    assert root_key(other, _HOST) != root_key(_RECIPE, _HOST)


def test_each_thing_that_is_pinned_is_in_the_key() -> None:
    others = [
        _PACKAGE,
        replace(_PACKAGE, name="other"),
        replace(_PACKAGE, version="1.0.1"),
        replace(_PACKAGE, integrity="sha512-B"),
        replace(_PACKAGE, files={"a": "/opt/b"}),
    ]
    assert len({root_key(replace(_RECIPE, npm=(package,)), _HOST) for package in others}) == len(others)


def test_a_supplied_archive_is_known_by_its_content_and_unseen_where_it_is_not_supplied() -> None:
    def key(supplied: Supplied) -> str:
        return root_key(replace(_RECIPE, supplied=(supplied,)), _HOST)

    one = replace(_SUPPLIED, archive=Path("/one.tar.gz"), sha256="a")
    assert key(_SUPPLIED) == root_key(_RECIPE, _HOST)
    assert key(one) == key(replace(one, archive=Path("/moved.tar.gz")))
    assert key(one) != key(replace(one, sha256="b"))


def test_sizes_do_not_make_the_root_anew() -> None:
    other = replace(_RECIPE, size_mb=128, defaults=Defaults(4, 1024, 4096))
    assert root_key(other, _HOST) == root_key(_RECIPE, _HOST)


def test_a_sources_file_changes_the_keys_by_its_content_and_not_by_its_name(tmp_path: Path) -> None:
    one, same, other = (tmp_path / f"{name}.list" for name in ("one", "same", "other"))
    one.write_text("deb a")
    same.write_text("deb a")
    other.write_text("deb b")
    keys: list[Callable[[Sources], str]] = [kernel_key, lambda sources: root_key(_RECIPE, sources)]
    for key in keys:
        assert key(Sources(one)) == key(Sources(same))
        assert len({key(Sources(one)), key(Sources(other)), key(_HOST)}) == 3


def _guest(folder: Path, project: str = '[project]\nname = "warren-guest"\nversion = "1.2"\n') -> Path:
    (folder / "warren_guest").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(project)
    (folder / "warren_guest/__init__.py").write_text("")
    (folder / "warren_guest/a.py").write_text("a = 1\n")
    return folder


def test_each_file_of_the_guest_is_an_input_and_caches_are_not(tmp_path: Path) -> None:
    guest = _guest(tmp_path)
    before = guest_hashes(guest)
    (guest / "warren_guest/__pycache__").mkdir()
    (guest / "warren_guest/__pycache__/a.pyc").write_bytes(b"x")
    (guest / "warren_guest/.a.py.swp").write_bytes(b"x")
    assert guest_hashes(guest) == before
    assert sorted(before) == ["pyproject.toml", "warren_guest/__init__.py", "warren_guest/a.py"]
    (guest / "warren_guest/a.py").write_text("a = 2\n")
    changed = guest_hashes(guest)
    assert changed != before
    (guest / "warren_guest/a.py").rename(guest / "warren_guest/b.py")
    assert guest_hashes(guest) not in (before, changed)


def test_a_guest_that_needs_more_than_python_is_refused(tmp_path: Path) -> None:
    assert guest_version(_guest(tmp_path / "good")) == "1.2"
    bad = _guest(tmp_path / "bad", '[project]\nversion = "1"\ndependencies = ["orjson"]\n')
    with pytest.raises(ImageError, match=r"dependencies = \['orjson'\]"):
        guest_version(bad)


def test_a_missing_guest_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"pyproject.toml is missing"):
        guest_hashes(tmp_path)
    shutil.rmtree(_guest(tmp_path / "g") / "warren_guest")
    with pytest.raises(ImageError, match=r"package warren_guest is missing"):
        guest_hashes(tmp_path / "g")


def test_hashes_do_not_depend_on_where_the_folder_is(tmp_path: Path) -> None:
    one, two = _guest(tmp_path / "one"), _guest(tmp_path / "two/deeper")
    assert hashes_of(files_under(one), relative_to=one) == hashes_of(files_under(two), relative_to=two)


def test_setup_steps_reach_the_image_unchanged() -> None:
    step = """echo "it's $HOME" > /a"""
    script = finishing_script(replace(_RECIPE, setup=(step,)), packages_into=Path("/tmp/p"), added=Path("/tmp/a"))
    assert """'echo "it'"'"'s $HOME" > /a'""" in script
    assert script.index("useradd") < script.index("/a")
