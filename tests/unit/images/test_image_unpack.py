"""Archives of others: what was asked for lands where it was sent, and nothing else anywhere."""

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from images.errors import ImageError
from images.recipe import Defaults, Recipe, Supplied
from images.rootfs import unpack_foreign
from images.unpack import unpack
from tests.unit.images.image_archives import file, special, write

_RECIPE = Recipe("small", None, (), (), (), 64, Defaults(1, 256, 512), ())


def _files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_files_and_folders_go_where_the_recipe_sends_them(tmp_path: Path) -> None:
    archive = write(
        tmp_path / "a.tgz",
        [
            file("package/bin/tool", b"tool", 0o4755),
            file("package/lib/a/b.js", b"b"),
            file("package/library.js", b"not of lib"),
            special("package/lib/empty", tarfile.DIRTYPE),
        ],
    )
    unpack(archive, tmp_path / "into", {"bin/tool": "/usr/local/bin/tool", "lib": "/opt/tool"})
    assert _files(tmp_path / "into") == {"opt/tool/a/b.js": "b", "usr/local/bin/tool": "tool"}
    assert (tmp_path / "into/opt/tool/empty").is_dir()
    tool = (tmp_path / "into/usr/local/bin/tool").stat()
    assert (tool.st_mode & 0o7777, int(tool.st_mtime)) == (0o755, 499_162_500)
    assert (tmp_path / "into/opt/tool/a/b.js").stat().st_mode & 0o7777 == 0o644


def test_the_whole_of_an_archive_is_what_is_below_its_folder_whatever_that_is_called(tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tgz", [file("other/a"), file("other/deep/b"), file("stray")])
    unpack(archive, tmp_path / "into", {".": "/opt/x"})
    assert sorted(_files(tmp_path / "into")) == ["opt/x/a", "opt/x/deep/b"]


def test_of_a_name_that_comes_twice_the_last_one_counts(tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tgz", [file("p/a", b"first"), file("p/a", b"last")])
    unpack(archive, tmp_path / "into", {".": "/opt/x"})
    assert _files(tmp_path / "into") == {"opt/x/a": "last"}


def test_links_inside_are_kept(tmp_path: Path) -> None:
    members = [file("p/lib/a"), special("p/bin/a", tarfile.SYMTYPE, "../lib/a")]
    unpack(write(tmp_path / "a.tgz", members), tmp_path / "into", {".": "/opt/x"})
    link = tmp_path / "into/opt/x/bin/a"
    assert (str(link.readlink()), link.read_text()) == ("../lib/a", "content")


@pytest.mark.parametrize(
    ("member", "complaint"),
    [
        (file("p/../../evil"), "leads out"),
        (file("/etc/evil"), "leads out"),
        (file("p/.."), "leads out"),
        (special("p/link", tarfile.SYMTYPE, "/etc/passwd"), "a link that leads out, to '/etc/passwd'"),
        (special("p/link", tarfile.SYMTYPE, "../evil"), "a link that leads out"),
        (special("p/a/link", tarfile.SYMTYPE, "../b/../../evil"), "a link that leads out"),
        (special("p/link", tarfile.LNKTYPE, "p/a"), "neither a file, a folder nor a symbolic link"),
        (special("p/device", tarfile.BLKTYPE), "neither a file, a folder nor a symbolic link"),
        (special("p/pipe", tarfile.FIFOTYPE), "neither a file, a folder nor a symbolic link"),
    ],
)
def test_what_leads_out_or_is_no_file_is_refused(
    tmp_path: Path, member: tuple[tarfile.TarInfo, bytes], complaint: str
) -> None:
    archive = write(tmp_path / "a.tgz", [file("p/good"), member])
    with pytest.raises(ImageError, match=complaint):
        unpack(archive, tmp_path / "deep/into", {".": "/opt/x"})
    assert list(tmp_path.rglob("evil")) == []


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """The link stays inside as its name says, but another link on the way to it does not."""
    members = [
        special("p/a/b", tarfile.SYMTYPE, "../c"),
        special("p/out", tarfile.SYMTYPE, "a/b/../.."),
        file("p/out/evil", b"evil"),
    ]
    with pytest.raises((ImageError, FileExistsError)):
        unpack(write(tmp_path / "a.tgz", members), tmp_path / "one/two/into", {".": "/opt/x"})
    assert [path.relative_to(tmp_path).parts[:5] for path in tmp_path.rglob("evil")] == [
        ("one", "two", "into", "opt", "x")
    ]


def test_a_link_out_of_what_is_taken_is_refused(tmp_path: Path) -> None:
    members = [file("p/a/b/c/tool"), special("p/a/b/c/up", tarfile.SYMTYPE, "../../..")]
    with pytest.raises(ImageError, match="is a link out of 'a/b/c'"):
        unpack(write(tmp_path / "a.tgz", members), tmp_path / "into", {"a/b/c": "/opt"})
    assert not (tmp_path / "into/opt/up").is_symlink()


def test_nothing_is_written_through_a_link_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "into/opt").symlink_to(tmp_path)
    with pytest.raises(ImageError, match="a link on the way leads out"):
        unpack(write(tmp_path / "a.tgz", [file("p/evil")]), tmp_path / "into", {".": "/opt"})
    assert list(tmp_path.rglob("evil")) == []


def test_what_is_missing_and_what_is_no_archive_is_named(tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tgz", [file("p/a")])
    with pytest.raises(ImageError, match=r"a\.tgz: has no b, c"):
        unpack(archive, tmp_path / "into", {"a": "/opt/a", "c": "/opt/c", "b": "/opt/b"})
    (tmp_path / "text.tgz").write_text("text")
    with pytest.raises(ImageError, match=r"is not a whole \.tar\.gz archive"):
        unpack(tmp_path / "text.tgz", tmp_path / "into", {".": "/opt"})
    (tmp_path / "cut.tgz").write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(ImageError, match=r"is not a whole \.tar\.gz archive"):
        unpack(tmp_path / "cut.tgz", tmp_path / "into", {".": "/opt"})


def test_a_supplied_archive_is_laid_out_with_links_to_its_programs(tmp_path: Path) -> None:
    archive = write(tmp_path / "tool.tar.gz", [file("dist/tool", b"#!", 0o755), file("dist/index.js")])
    supplied = Supplied("WARREN_TOOL", "/opt/tool", ("tool",), archive, "sha")
    unpack_foreign(tmp_path / "added", replace(_RECIPE, supplied=(supplied,)), lambda _: archive)
    assert sorted(_files(tmp_path / "added")) == ["opt/tool/index.js", "opt/tool/tool"]
    assert str((tmp_path / "added/usr/local/bin/tool").readlink()) == "/opt/tool/tool"
    unpack_foreign(tmp_path / "off", replace(_RECIPE, supplied=(replace(supplied, archive=None),)), lambda _: archive)
    assert _files(tmp_path / "off") == {}


def test_a_supplied_archive_without_its_program_is_refused(tmp_path: Path) -> None:
    archive = write(tmp_path / "tool.tar.gz", [file("dist/tool", b"no program", 0o644)])
    supplied = Supplied("WARREN_TOOL", "/opt/tool", ("tool",), archive, "sha")
    with pytest.raises(ImageError, match=r"WARREN_TOOL = .*: has no program 'tool'"):
        unpack_foreign(tmp_path / "added", replace(_RECIPE, supplied=(supplied,)), lambda _: archive)
