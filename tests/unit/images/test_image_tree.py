"""The root file system as a folder and as a file: the same whoever makes it, and when."""

import os
import shutil
import time
from pathlib import Path

import pytest

from images.debian import Package, installed_packages
from images.errors import ImageError
from images.filesystem import make_filesystem, size_for
from images.tree import fix_times, settle, shadow, undated


def _tree(folder: Path) -> Path:
    for name in ("etc/ssh", "var/log", "var/lib/dbus", "tmp/x", "opt/warren-guest", "usr/lib"):
        (folder / name).mkdir(parents=True)
    (folder / "etc/shadow").write_text("root:*:20000:0:99999:7:::\nuser:!:20001:0:99999:7:::\n")
    (folder / "etc/resolv.conf").symlink_to("/run/elsewhere")
    (folder / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    for name in (
        "etc/ssh/ssh_host_rsa_key",
        "var/log/dpkg.log",
        "var/lib/dbus/machine-id",
        "etc/passwd-",
        "etc/passwd",
    ):
        (folder / name).write_text("x")
    return folder


def test_nothing_of_the_building_host_stays_in_the_image(tmp_path: Path) -> None:
    tree = _tree(tmp_path)
    settle(tree)
    for name in ("etc/ssh/ssh_host_rsa_key", "var/log/dpkg.log", "var/lib/dbus/machine-id", "etc/passwd-", "tmp/x"):
        assert not (tree / name).exists()
    assert (tree / "etc/passwd").exists()
    assert (tree / "etc/machine-id").read_bytes() == b""
    assert not (tree / "etc/resolv.conf").is_symlink()
    assert (tree / "etc/shadow").read_text() == "root:*::0:99999:7:::\nuser:!::0:99999:7:::\n"


def test_files_added_to_a_shadow_are_not_in_what_it_shadows(tmp_path: Path) -> None:
    source = _tree(tmp_path / "source")
    shadow(source, tmp_path / "copy")
    (tmp_path / "copy/usr/lib/added").touch()
    assert os.listdir(source / "usr/lib") == []
    assert (tmp_path / "copy/etc/passwd").samefile(source / "etc/passwd")
    assert os.readlink(tmp_path / "copy/etc/resolv.conf") == "/run/elsewhere"


def test_a_shadow_line_keeps_all_but_the_day() -> None:
    assert undated("user:!:20001:0:99999:7:::\n") == "user:!::0:99999:7:::\n"


def test_what_the_build_made_gets_the_time_of_the_newest_package(tmp_path: Path) -> None:
    packaged, made, source, guest = (tmp_path / n for n in ("bash", "passwd", "a.py", "opt/warren-guest/b.py"))
    guest.parent.mkdir(parents=True)
    for path, at in ((packaged, 5_000), (made, 20_000), (source, 20_001), (guest, 20_002)):
        path.touch()
        os.utime(path, (at, at))
    fix_times(tmp_path, building_since=10_000)
    assert [int(path.stat().st_mtime) for path in (packaged, made, guest)] == [5_000, 5_000, 5_000]
    # Compiled Python knows its source by this time.
    assert int(source.stat().st_mtime) == 20_001


def test_hard_links_and_links_take_no_room_twice(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "c").symlink_to("a")
    count, size = size_for(path.lstat() for path in tmp_path.iterdir())
    assert count == 2
    assert 100_000 < size < 6 * 1024 * 1024


@pytest.mark.skipif(shutil.which("mke2fs", path="/usr/sbin:/sbin") is None, reason="needs e2fsprogs")
def test_the_same_tree_and_key_give_the_same_bytes(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        tree = _tree(tmp_path / name)
        settle(tree)
        fix_times(tree, building_since=0)
        files.append(tmp_path / f"{name}.ext4")
        make_filesystem(tree, files[-1], key="ab" * 32, limit_mb=64)
        time.sleep(1.1)  # the times that it writes are whole seconds
    assert files[0].read_bytes() == files[1].read_bytes()
    make_filesystem(tmp_path / "one", tmp_path / "three.ext4", key="cd" * 32, limit_mb=64)
    assert (tmp_path / "three.ext4").read_bytes() != files[0].read_bytes()


def test_an_image_that_outgrew_its_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 20_000_000)
    with pytest.raises(ImageError, match=r"takes \d+ MB and size_mb allows 16"):
        make_filesystem(tmp_path, tmp_path / "out.ext4", key="ab" * 32, limit_mb=16)
    assert not (tmp_path / "out.ext4").exists()


def test_installed_packages_are_read_from_what_apt_shows() -> None:
    shown = """Package: git
Version: 1:2.39
Description: fast
 Package: not this
SHA256: bb

Package: bash
Version: 5.2
SHA256: aa
"""
    assert installed_packages(shown) == [Package("bash", "5.2", "aa"), Package("git", "1:2.39", "bb")]
