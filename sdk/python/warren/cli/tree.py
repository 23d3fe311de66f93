"""A folder as a tar stream, both ways. What comes out of a sandbox is hostile: it stays within its folder."""

import contextlib
import os
import shutil
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

PIECE_BYTES = 1 << 18
LINK_CHARS = 4096
NEITHER = "neither a file nor a folder"
Warn = Callable[[str], None]


class Packed:
    """A folder as the bytes of a tar, made while they are read. As a block: its thread is gone after it."""

    def __init__(self, folder: Path, warn: Warn) -> None:
        self._folder, self._warn = folder, warn
        self._error: BaseException | None = None
        self._read_end, self._write_end = os.pipe()
        self._packing = threading.Thread(target=self._pack, daemon=True)

    def seekable(self) -> bool:
        return False

    def read(self, count: int) -> bytes:
        data = os.read(self._read_end, min(count, PIECE_BYTES))
        if not data:
            self._packing.join()
            if self._error is not None:  # half a tar must not look like a whole one
                raise self._error
        return data

    def _pack(self) -> None:
        try:
            with (
                open(self._write_end, "wb", buffering=PIECE_BYTES) as out,  # noqa: PTH123 — a descriptor
                _Tar.open(mode="w|", fileobj=cast(Any, out), format=tarfile.PAX_FORMAT) as tar,
            ):
                tar.warn = self._warn
                tar.add(self._folder, arcname=".", filter=self._carried)
        except BaseException as error:
            self._error = error

    def _carried(self, member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        """Who owns it here means nothing there. What would mean something else there stays here, and is told."""
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        is_link = member.issym() and _stays_inside(member)
        if is_link or member.isreg() or member.isdir() or member.islnk():
            return member
        self._warn(_left_out(member.name, _kind(member)))
        return None

    def __enter__(self) -> "Packed":
        self._packing.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._read_end)  # whoever still packs gets a broken pipe
        self._packing.join()


class _Tar(tarfile.TarFile):
    """Tells what a tar has no word for, such as a socket: the filter never sees it."""

    warn: Warn

    def gettarinfo(self, name: Any = None, arcname: Any = None, fileobj: Any = None) -> Any:
        found: tarfile.TarInfo | None = super().gettarinfo(name, arcname, fileobj)
        if found is None:
            self.warn(_left_out(str(arcname), NEITHER))
        return found


def size_of(folder: Path) -> int:
    """About how many bytes its tar has."""
    found = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found += (Path(where) / name).lstat().st_size + 1024
    return found


class Pieces:
    """A file to read from, out of pieces as they come."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = bytearray()

    def read(self, count: int) -> bytes:
        while len(self._held) < count and (piece := next(self._pieces, None)) is not None:
            self._held += piece
        data = bytes(self._held[:count])
        del self._held[:count]
        return data

    def drain(self) -> None:
        """To the end: there the sandbox says whether it was all."""
        for _ in self._pieces:
            pass


def unpack(source: Pieces, folder: Path, warn: Warn) -> None:
    """Write the tar's files and folders into `folder`, and its links last: nothing is written through one of them."""
    folder.mkdir(parents=True, exist_ok=True)
    unpacking = _Unpacking(folder, warn)
    with tarfile.open(mode="r|", fileobj=cast(Any, source), errorlevel=2) as tar:
        for member in tar:
            unpacking.take(tar, member)
    unpacking.end()


class _Unpacking:
    """A tar on its way into a folder, member by member."""

    def __init__(self, folder: Path, warn: Warn) -> None:
        self._folder, self._warn = folder, warn
        self._files: set[Path] = set()  # that we have written
        self._links: list[tuple[Path, str]] = []
        self._modes: list[tuple[Path, int]] = []

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        place = _place(self._folder, member.name)
        if place is None:
            self._warn(_left_out(member.name, "outside of the folder"))
        elif member.isdir():
            _make_folder(self._folder, place)
            self._modes.append((place, member.mode & 0o777 | stat.S_IRWXU))
        elif member.isreg():
            _write(self._folder, place, tar, member)
            self._files.add(place)
        elif member.islnk() and (first := _place(self._folder, member.linkname)) in self._files:
            _second_name(self._folder, place, first)
            self._files.add(place)
        elif member.issym() and _stays_inside(member):
            self._links.append((place, member.linkname))
        else:
            self._warn(_left_out(member.name, _kind(member)))

    def end(self) -> None:
        for place, target in self._links:
            _link(self._folder, place, target)
        # One that stays inside by its words may lead out through another one.
        inside = self._folder.resolve()
        for place, target in self._links:
            if not _leads_into(place, inside):
                place.unlink()
                name = str(place.relative_to(self._folder))
                self._warn(_left_out(name, f"a link to {target!r}, which leads elsewhere"))
        for place, mode in reversed(self._modes):
            place.chmod(mode)


def _place(folder: Path, name: str) -> Path | None:
    """Where a member goes; nowhere if it would leave the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        return None
    return folder / path


def _make_folder(folder: Path, place: Path) -> None:
    """`place` and what is above it, as real folders: a link that was there already is not followed."""
    current = folder
    for part in place.relative_to(folder).parts:
        current = current / part
        if current.is_symlink():
            current.unlink()
        current.mkdir(exist_ok=True)


def _write(folder: Path, place: Path, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    _make_folder(folder, place.parent)
    place.unlink(missing_ok=True)
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as out:  # noqa: PTH123 — a descriptor
        _fill(out, tar, member)
    place.chmod(member.mode & 0o777)
    os.utime(place, (member.mtime, member.mtime))


def _fill(out: IO[bytes], tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    """With the holes that it has: a file of nothing else may be as long as it likes, and takes no room."""
    parts: list[tuple[int, int]] | None = cast(Any, member).sparse
    if parts is None:
        shutil.copyfileobj(cast(IO[bytes], tar.extractfile(member)), out, PIECE_BYTES)
        return
    stored = cast(Any, tar).fileobj  # its parts, one behind the other
    stored.seek(member.offset_data)
    for offset, count in parts:
        out.seek(offset)
        for at in range(0, count, PIECE_BYTES):
            out.write(stored.read(min(PIECE_BYTES, count - at)))
    out.truncate(member.size)


def _second_name(folder: Path, place: Path, first: Path) -> None:
    _make_folder(folder, place.parent)
    if place != first:
        place.unlink(missing_ok=True)
        os.link(first, place, follow_symlinks=False)


def _leads_into(place: Path, folder: Path) -> bool:
    """Whether what a link leads to in the end, if there is anything, is in the folder."""
    try:
        return place.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):
        return True  # in a circle, and nowhere


def _stays_inside(member: tarfile.TarInfo) -> bool:
    """The link leads to somewhere in the folder, wherever that folder is."""
    if member.linkname.startswith("/") or len(member.linkname) > LINK_CHARS:
        return False
    depth = len(PurePosixPath(member.name).parent.parts)
    for part in PurePosixPath(member.linkname).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return True


def _link(folder: Path, place: Path, target: str) -> None:
    _make_folder(folder, place.parent)
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def _kind(member: tarfile.TarInfo) -> str:
    if member.issym():
        return f"a link to {member.linkname!r}, which is elsewhere"
    return NEITHER


def _left_out(name: str, why: str) -> str:
    return f"left out: {name.removeprefix('./')!r} is {why}"
