"""A tar stream is read as tar reads it, whatever its pieces, and nothing that leads elsewhere gets through."""

import contextlib
import io
import tarfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poold.archives import members
from poold.archives.errors import BadArchive
from poold.archives.tar import Kind, Member, Tar
from tests.unit.archives.archives_tars import (
    LONG,
    MIB,
    disfigured,
    made,
    member,
    packed,
    pax,
    raw,
    read,
    with_sum,
    workspace,
)

END = bytes(1024)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def stream(folder: Path) -> bytes:
    return packed(folder)


def test_what_gnu_tar_writes_is_read_and_counted(stream: bytes) -> None:
    census, kept = read(stream)
    assert stream.startswith(kept)
    assert set(stream[len(kept) :]) <= {0}
    assert (census.files, census.outward_links, census.left_out) == (12, 2, 0)
    assert census.unpacked_bytes == 6 + 1000 + 2 + 64 * MIB


def test_gnus_own_format_is_read_too(tmp_path: Path) -> None:
    (tmp_path / LONG / LONG).mkdir(parents=True)
    (tmp_path / LONG / LONG / "a").write_bytes(b"x" * 513)
    (tmp_path / "link").symlink_to("b" * 150)
    argv = ("--format=gnu", "--hole-detection=raw")
    stream = packed(tmp_path, *argv)
    census, kept = read(stream)
    assert (census.files, census.unpacked_bytes) == (2, 513)
    assert stream.startswith(kept)


def test_names_are_what_tar_says_they_are(stream: bytes) -> None:
    found: list[Member] = []
    tar = Tar(lambda each: not found.append(each))  # type: ignore[func-returns-value]
    tar.feed(stream)
    names = {each.name.removeprefix(b"./"): each for each in found}
    assert f"src/{LONG}/{LONG}/deep.bin".encode() in names
    assert b"not-utf8-\xff\n" in names
    sparse = names[f"sparse-{LONG}".encode()]
    assert (sparse.kind, sparse.size) == (Kind.FILE, 64 * MIB)
    assert sparse.stored < MIB
    assert names[b"src/far"].link == b"../../" + b"x" * 150


@settings(max_examples=30, deadline=None)
@given(step=st.integers(1, 5000))
def test_the_pieces_in_which_it_comes_make_no_difference(stream: bytes, step: int) -> None:
    whole, part = read(stream), read(stream, step)
    assert part[1] == whole[1]
    assert vars(part[0]) == vars(whole[0])


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damage_is_refused_or_harmless_and_nothing_else_is_raised(stream: bytes, data: st.DataObject) -> None:
    damaged = bytearray(stream[:40_000] + END)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + 1] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(BadArchive):
        assert read(bytes(damaged))[1].endswith(END)


def names_by_python(stream: bytes) -> list[bytes]:
    with tarfile.open(fileobj=io.BytesIO(stream), encoding="utf-8", errors="surrogateescape") as tar:
        return [plain(each.name.encode("utf-8", "surrogateescape")) for each in tar]


def plain(name: bytes) -> bytes:
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


@pytest.mark.parametrize("seed", range(8))
def test_what_gets_through_has_the_same_names_for_another_reader(stream: bytes, seed: int) -> None:
    """Else what was judged here would not be what is unpacked there."""
    random, passed = Random(seed), 0
    for _ in range(60):
        changed, found, census = disfigured(stream, random), [], members.Census()

        def judge(each: Member, found: list[bytes] = found, census: members.Census = census) -> bool:
            found.append(plain(each.name))
            return census.judge(each)

        tar = Tar(judge)
        with contextlib.suppress(BadArchive):
            tar.feed(changed)
            tar.end()
            assert found == names_by_python(changed)
            passed += 1
    assert passed > 5


@pytest.mark.parametrize("cut", [0, 1, 511, 512, 513, 1024, 5000, -10_240, -9000])
def test_a_stream_that_ends_in_the_middle_is_refused(stream: bytes, cut: int) -> None:
    end = stream.rstrip(b"\0")
    short = stream[:cut] if cut >= 0 else stream[: len(end) // 512 * 512 + 512]
    with pytest.raises(BadArchive, match="ends in the middle"):
        read(short)


def test_what_follows_the_end_is_ignored(stream: bytes) -> None:
    assert read(stream + b"garbage" * 1000)[1] == read(stream)[1]
    assert read(END)[1] == END
    assert read(END + raw(b"0", b"x", "/etc/passwd"))[0].files == 0


@pytest.mark.parametrize("name", ["/etc/passwd", "../a", "a/../../b", "a/..", "..", "//a", "./../a"])
@pytest.mark.parametrize("type", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE])
def test_a_name_that_leads_out_is_refused(name: str, type: bytes) -> None:
    with pytest.raises(BadArchive, match="leads out of it"):
        read(made(member(name, type, "x")))


@pytest.mark.parametrize(
    "header",
    [
        pax((b"path", b"../a")),
        pax((b"path", b"/a")),
        pax(
            (b"GNU.sparse.major", b"1"),
            (b"GNU.sparse.minor", b"0"),
            (b"GNU.sparse.name", b"../a"),
            (b"GNU.sparse.realsize", b"1"),
        ),
        pax(
            *((b"path", b"../a"), (b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0")),
            *((b"GNU.sparse.name", b"a"), (b"GNU.sparse.realsize", b"1")),
        ),
        raw(b"L", b"../a\0"),
        raw(b"L", b"/" + b"a" * 200 + b"\0"),
    ],
)
def test_a_long_name_that_leads_out_is_refused(header: bytes) -> None:
    with pytest.raises(BadArchive, match="leads out of it"):
        read(header + raw(b"0", b"x") + END)


@pytest.mark.parametrize("target", ["/etc/passwd", "../a", "a/../../b"])
def test_a_hard_link_that_leads_out_is_refused(target: str) -> None:
    with pytest.raises(BadArchive, match="hard link to that leads out"):
        read(made(member("a", tarfile.LNKTYPE, target)))
    with pytest.raises(BadArchive, match="hard link to that leads out"):
        read(pax((b"linkpath", target.encode())) + raw(b"1", b"") + END)
    with pytest.raises(BadArchive, match="hard link to that leads out"):
        read(raw(b"K", target.encode() + b"\0") + raw(b"1", b"") + END)


def test_nothing_is_written_through_a_symlink() -> None:
    link = member("./a//b", tarfile.SYMTYPE, "/etc")
    for through in (
        member("a/b/passwd"),
        member("x", tarfile.LNKTYPE, "a/b/passwd"),
        member("a/./b/c", tarfile.DIRTYPE),
        member("a/b/c/d/e", tarfile.SYMTYPE, "x"),
    ):
        with pytest.raises(BadArchive, match="through a symlink"):
            read(made(link, through))


def test_a_hard_link_to_a_symlink_is_one() -> None:
    stream = made(member("a", tarfile.SYMTYPE, "/etc"), member("b", tarfile.LNKTYPE, "a"), member("b/passwd"))
    with pytest.raises(BadArchive, match="through a symlink"):
        read(stream)


@pytest.mark.parametrize(
    ("name", "target", "is_outward"),
    [
        ("a", "b", False),
        ("a", "/b", True),
        ("a", "..", True),
        ("a/b", "..", False),
        ("a/b", "../..", True),
        ("a/b", "../../a/b", True),
        ("./a", "../x", True),
        ("a/b/c", ".././../d", False),
        ("a", "b/../..", True),
    ],
)
def test_symlinks_that_lead_out_are_kept_and_counted(name: str, target: str, is_outward: bool) -> None:
    census, _ = read(made(member(name, tarfile.SYMTYPE, target)))
    assert (census.files, census.outward_links) == (1, is_outward)


def test_devices_are_left_out_with_all_that_is_said_of_them() -> None:
    device = pax((b"path", b"dev/" + b"x" * 200)) + raw(b"3", b"")
    around = raw(b"0", b"x" * 600, "a"), raw(b"0", b"y", "b")
    census, kept = read(around[0] + device + around[1] + END)
    assert kept == around[0] + around[1] + END
    assert (census.files, census.left_out) == (2, 1)


def test_of_what_is_not_kept_no_byte_gets_through() -> None:
    kept, left_out = raw(b"0", b"x" * 600, "kept"), raw(b"0", b"y" * 600, "left out")
    tar = Tar(lambda member: member.name == b"kept")
    assert tar.feed(left_out + kept + left_out + END) == kept + END


SPARSE = ((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", b"a"))
FILE = raw(b"0", b"x")


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (b"x" * 512, "no header of tar"),
        (FILE[:512].replace(b"ustar", b"\0\0\0\0\0"), "no header of tar"),
        (b"z" + FILE[1:], "sum is wrong"),
        (FILE[:148] + b"nonsense" + FILE[156:], "field that is no number"),
        (with_sum(FILE[:124] + b"\x000000000001" + FILE[135:512]), "field that is no number"),
        (with_sum(FILE[:124] + b"\xff" * 12 + FILE[136:512]), "field that is no number"),
        (raw(b"S", b""), "unknown type"),
        (raw(b"D", b""), "unknown type"),
        (raw(b"M", b""), "unknown type"),
        (raw(b"5", b"x"), "folder with data"),
        (raw(b"2", b"", size=1), "symlink with data"),
        (raw(b"1", b"", size=1), "hard link with data"),
        (raw(b"x", b"", size=(1 << 20) + 1), "1048577 bytes"),
        (raw(b"L", b"", size=(1 << 33) - 1), "8589934591 bytes"),
        (raw(b"x", b""), "of 0 bytes"),
        (raw(b"x", b"7 path="), "makes no sense"),
        (raw(b"x", b"99 path=a\n"), "makes no sense"),
        (raw(b"x", b"a path=a\n"), "makes no sense"),
        (raw(b"x", b"8 path=a\n"), "makes no sense"),
        (raw(b"x", b"0 path=a\n"), "makes no sense"),
        (pax((b"path", b"a"), (b"path", b"b")), "makes no sense"),
        (pax((b"path", b"")), "empty path"),
        (pax((b"path", b"a\0b")), "a name that is none"),
        (pax((b"path", b"a" * 4097)), "a name that is none"),
        (raw(b"L", b"a\0b\0"), "a name that is none"),
        (pax((b"size", b"-1")), "no number"),
        (pax((b"size", b"1e3")), "no number"),
        (pax((b"size", b"9" * 19)), "a file of 9"),
        (pax(*SPARSE), "sparse file of an unknown form"),
        (pax((b"GNU.sparse.map", b"0,1")), "sparse file of an unknown form"),
        (pax(*SPARSE, (b"GNU.sparse.realsize", b"9" * 19)), "a file of 9"),
        (pax(*SPARSE, (b"GNU.sparse.realsize", b"x")), "no number"),
        (pax((b"path", b"a"), type=b"g"), "of all that is in it"),
        (pax((b"size", b"1"), type=b"g"), "of all that is in it"),
        (pax((b"GNU.sparse.name", b"1"), type=b"g"), "of all that is in it"),
        (pax((b"mtime", b"1")) * 2, "two headers for one name"),
        (pax((b"mtime", b"1")) + raw(b"L", b"a\0"), "two headers for one name"),
        (raw(b"L", b"a\0") + pax((b"mtime", b"1")), "two headers for one name"),
        (raw(b"L", b"a\0") * 2, "two headers for one name"),
        (raw(b"L", b"a\0") + pax((b"comment", b"1"), type=b"g"), "two headers for one name"),
        (pax((b"mtime", b"1")) + END, "of nothing"),
        (bytes(512) + FILE, "goes on behind its end"),
        (raw(b"0", b"x", "a/"), "name of a folder"),
        (raw(b"0", b"x", ""), "a name that is none"),
        (raw(b"2", b"", "a"), "a symlink to that is none"),
    ],
)
def test_what_is_no_archive_is_refused_in_words(stream: bytes, said: str) -> None:
    with pytest.raises(BadArchive, match=said) as caught:
        read(stream + FILE + END)
    assert len(str(caught.value)) < 300


def test_what_is_said_of_all_is_kept_if_it_is_harmless() -> None:
    stream = pax((b"comment", b"0123abc"), type=b"g") + FILE + END
    assert read(stream)[1] == stream


def test_the_size_that_counts_is_the_extended_one() -> None:
    """Else the data of one member would be headers of others, to one of two programs."""
    inner = raw(b"0", b"", "/etc/passwd")
    stream = pax((b"size", b"%d" % len(inner))) + raw(b"0", inner, size=0)
    assert read(stream + END)[0].files == 1


def test_large_files_have_sizes_in_binary() -> None:
    census = members.Census()
    tar, info = Tar(census.judge), member("big", size=10 << 30)
    assert tar.feed(info.tobuf(tarfile.GNU_FORMAT)) == info.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(BadArchive, match="ends in the middle"):
        tar.end()
    assert census.unpacked_bytes == 10 << 30


def test_symlinks_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MAX_SYMLINKS", 3)
    with pytest.raises(BadArchive, match="more than 3 symlinks"):
        read(made(*(member(f"l{i}", tarfile.SYMTYPE, "x") for i in range(4))))
