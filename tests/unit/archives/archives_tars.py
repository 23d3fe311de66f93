"""Archives: real ones by GNU tar, and ones that no tar would make."""

import io
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

from poold.archives.members import Census
from poold.archives.tar import Tar

LONG = "n" * 90
MIB = 1 << 20


def workspace(folder: Path) -> Path:
    """A little of all that people have in theirs."""
    (folder / "src" / LONG / LONG).mkdir(parents=True)
    (folder / "src" / "a.txt").write_text("hello\n")
    (folder / "src" / LONG / LONG / "deep.bin").write_bytes(os.urandom(1000))
    (folder / "empty").touch()
    (folder / os.fsdecode(b"not-utf8-\xff\n")).write_text("x")
    (folder / "grün").write_text("x")
    os.link(folder / "src" / "a.txt", folder / "hard")
    (folder / "inward").symlink_to("src/a.txt")
    (folder / "src" / "up").symlink_to("../hard")
    (folder / "outward").symlink_to("/usr/bin/python3")
    (folder / "src" / "far").symlink_to("../../" + "x" * 150)
    os.mkfifo(folder / "pipe")
    with (folder / ("sparse-" + LONG)).open("wb") as file:
        file.truncate(64 * MIB)
        file.seek(32 * MIB)
        file.write(b"in the middle")
    return folder


def packed(folder: Path, *options: str) -> bytes:
    argv = ["tar", "-C", str(folder), "--sparse", *(options or ("--format=posix",)), "-cf", "-", "."]
    return subprocess.run(argv, capture_output=True, check=True).stdout


def unpacked(archive: Path, into: Path) -> Path:
    into.mkdir()
    subprocess.run(["tar", "-C", str(into), "--zstd", "-xf", str(archive)], check=True)
    return into


def listed(folder: Path) -> dict[str, object]:
    """All that is in a folder, and what it is."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        name = os.fsencode(path.relative_to(folder)).decode("latin-1")
        if path.is_symlink():
            found[name] = ("symlink", os.readlink(path))
        elif path.is_file():
            found[name] = ("file", path.read_bytes(), path.stat().st_nlink)
        else:
            found[name] = ("folder" if path.is_dir() else "fifo",)
    return found


def made(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    """Written by Python, which writes what it is told."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for each in members:
            info, data = each if isinstance(each, tuple) else (each, b"")
            info.size = len(data) or info.size
            tar.addfile(info, io.BytesIO(data) if data else None)
    return out.getvalue()


def member(name: str, type: bytes = tarfile.REGTYPE, link: str = "", size: int = 0, **pax: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = type, link, size
    info.pax_headers = {key.replace("__", "."): value for key, value in pax.items()}
    return info


def raw(type: bytes, data: bytes, name: str = "h", size: int | None = None) -> bytes:
    """One block with what follows it, as it is."""
    info = member(name, type, size=len(data) if size is None else size)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


def pax(*records: tuple[bytes, bytes], type: bytes = b"x") -> bytes:
    body = b""
    for key, value in records:
        length = len(key) + len(value) + 3
        while len(str(length)) + len(key) + len(value) + 3 != length:
            length += 1
        body += b"%d %b=%b\n" % (length, key, value)
    return raw(type, body)


def read(stream: bytes, step: int = 1 << 16) -> tuple[Census, bytes]:
    """Read a stream in pieces of `step` bytes."""
    census = Census()
    tar = Tar(census.judge)
    kept = b"".join(tar.feed(stream[at : at + step]) for at in range(0, len(stream), step))
    tar.end()
    return census, kept


async def chunks(stream: bytes, step: int = 1 << 16) -> AsyncIterator[bytes]:
    for at in range(0, len(stream), step):
        yield stream[at : at + step]


def with_sum(block: bytes) -> bytes:
    """A header with the sum that it should have."""
    blank = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(blank) + block[156:]


def headers(stream: bytes) -> list[tuple[int, int]]:
    """Where each header of a good stream is, and how many bytes follow it."""
    found, at = [], 0
    while (block := stream[at : at + 512]) != bytes(512):
        size = int(block[124:136].strip(b" \0"), 8)
        found.append((at, size))
        at += 512 + -(-size // 512) * 512
    return found


def disfigured(stream: bytes, random: Random) -> bytes:
    """A stream in which headers say something else, with sums that are right, or stand elsewhere, or are missing."""
    changed, known = bytearray(stream), headers(stream)
    for _ in range(random.randint(1, 2)):
        at, size = random.choice(known)
        block = bytes(changed[at : at + 512])
        match random.choice(("field", "field", "field", "body", "copy", "cut")):
            case "field":
                where = random.choice(
                    (random.randrange(100), random.randrange(124, 136), 156, random.randrange(157, 500))
                )
                value = random.choice(b"\0 /.01235xgLK\x80\xff")
                changed[at : at + 512] = with_sum(block[:where] + bytes([value]) + block[where + 1 :])
            case "body" if size:
                changed[at + 512 + random.randrange(size)] = random.choice(b"0123456789 =\n./\0abc")
            case "copy":
                there, _ = random.choice(known)
                changed[there : there + 512] = block
            case "cut":
                del changed[at : at + 512 * random.randint(1, 2)]
    return bytes(changed)
