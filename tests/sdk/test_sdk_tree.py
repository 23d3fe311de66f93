"""Folders as tar streams: what goes out is whole or an error, and what comes in stays where it belongs."""

import io
import os
import socket
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from warren.cli.tree import Packed, Pieces, unpack


def tar_of(*members: tuple[str, bytes | None, str, int]) -> bytes:
    """A tar of (name, content, link, type)."""
    out = io.BytesIO()
    with tarfile.open(mode="w", fileobj=out) as tar:
        for name, content, link, kind in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = bytes([kind]), link
            member.size, member.mode = len(content or b""), 0o4755
            tar.addfile(member, io.BytesIO(content or b""))
    return out.getvalue()


FILE, LINK, HARD, DEVICE, FOLDER = (ord(kind) for kind in "02135")


def unpacked(data: bytes, folder: Path) -> list[str]:
    told: list[str] = []
    unpack(Pieces(iter([data[at : at + 100] for at in range(0, len(data), 100)])), folder, told.append)
    return told


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/evil", "..", "./../evil"], ids=["up", "deep", "absolute", "dots", "dot"]
)
def test_a_name_that_leads_out_of_the_folder_is_left_out(tmp_path: Path, name: str) -> None:
    told = unpacked(tar_of((name, b"evil", "", FILE), ("good", b"good", "", FILE)), tmp_path / "in")
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "good"]
    assert len(told) == 1
    assert not Path("/evil").exists()


def test_nothing_is_written_through_a_link_of_the_archive(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for target in (str(outside), "../outside", "x/../../outside"):
        data = tar_of(("a", None, target, LINK), ("a/evil", b"evil", "", FILE))
        assert unpacked(data, tmp_path / "in")
        assert list(outside.iterdir()) == []


def test_a_link_within_the_archive_is_not_followed_either(tmp_path: Path) -> None:
    data = tar_of(("d/f", b"kept", "", FILE), ("l", None, "d/f", LINK), ("l", b"other", "", FILE))
    unpacked(data, tmp_path / "in")
    assert (tmp_path / "in" / "d" / "f").read_bytes() == b"kept"


def test_a_link_that_was_here_before_is_replaced_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"mine")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "d").symlink_to(outside)
    (folder / "f").symlink_to(outside / "f")
    unpacked(tar_of(("d/f", b"theirs", "", FILE), ("f", b"theirs", "", FILE)), folder)
    assert (outside / "f").read_bytes() == b"mine"
    assert (folder / "d" / "f").read_bytes() == b"theirs"


def test_devices_and_hard_links_are_left_out(tmp_path: Path) -> None:
    told = unpacked(tar_of(("dev", None, "", DEVICE), ("hard", None, "/etc/passwd", HARD)), tmp_path / "in")
    assert list((tmp_path / "in").iterdir()) == []
    assert len(told) == 2


def test_no_file_gets_more_rights_than_those_of_a_file(tmp_path: Path) -> None:
    unpacked(tar_of(("suid", b"x", "", FILE), ("d", None, "", FOLDER)), tmp_path / "in")
    assert stat.S_IMODE((tmp_path / "in" / "suid").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "in" / "d").stat().st_mode) == 0o755


def test_an_archive_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    data = tar_of(("big", b"x" * 100_000, "", FILE))
    with pytest.raises((tarfile.TarError, OSError)):
        unpacked(data[:50_000], tmp_path / "in")


def test_half_a_folder_does_not_look_like_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x")

    def fails(*_: object, **__: object) -> Iterator[bytes]:
        raise PermissionError("no")

    monkeypatch.setattr(tarfile.TarFile, "add", fails)
    with Packed(tmp_path, print) as packed, pytest.raises(PermissionError):
        list(iter(lambda: packed.read(65536), b""))


def test_whoever_has_enough_of_a_folder_ends_it(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(os.urandom(3_000_000))
    with Packed(tmp_path, print) as packed:
        assert packed.read(10)


def test_what_means_something_else_there_is_left_out_and_told(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "f").write_bytes(b"x")
    for name, target in {"out": "/etc/passwd", "src/up": "../../f", "in": "f", "src/in": "../f"}.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe")
    told: list[str] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "src" / "socket"))
        with Packed(folder, told.append) as packed:
            data = b"".join(iter(lambda: packed.read(65536), b""))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert sorted(tar.getnames()) == [".", "./f", "./in", "./src", "./src/in"]
    assert sorted(told) == [
        "left out: 'out' is a link to '/etc/passwd', which is elsewhere",
        "left out: 'pipe' is neither a file nor a folder",
        "left out: 'src/socket' is neither a file nor a folder",
        "left out: 'src/up' is a link to '../../f', which is elsewhere",
    ]


@given(some.lists(some.binary(max_size=50), max_size=20), some.lists(some.integers(1, 60), max_size=40))
def test_pieces_are_read_as_one_file(pieces: list[bytes], counts: list[int]) -> None:
    source = Pieces(iter(pieces))
    read = b"".join(source.read(count) for count in counts)
    assert b"".join(pieces).startswith(read)
    assert read + source.read(10_000) == b"".join(pieces)


def test_a_link_that_leads_out_through_another_one_is_left_out(tmp_path: Path) -> None:
    data = tar_of(("a/b/f", b"", "", FILE), ("a/b/up", None, "../..", LINK), ("a/b/out", None, "up/../secret", LINK))
    (tmp_path / "secret").write_text("mine")
    told = unpacked(data, tmp_path / "in")
    assert told == ["left out: 'a/b/out' is a link to 'up/../secret', which leads elsewhere"]
    assert sorted(path.name for path in (tmp_path / "in/a/b").iterdir()) == ["f", "up"]


def test_a_second_name_of_a_file_is_one_here_too(tmp_path: Path) -> None:
    data = tar_of(("d/f", b"same", "", FILE), ("e/g", None, "./d/f", HARD), ("h", None, "../x", HARD))
    (tmp_path / "x").write_text("mine")
    told = unpacked(data, tmp_path / "in")
    assert (tmp_path / "in/e/g").samefile(tmp_path / "in/d/f")
    assert told == ["left out: 'h' is neither a file nor a folder"]


def test_a_second_name_of_what_was_here_before_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "secret").write_text("mine")
    (folder / "f").symlink_to(tmp_path / "secret")
    assert len(unpacked(tar_of(("g", None, "f", HARD)), folder)) == 1
    assert not (folder / "g").exists()
