"""Archives of others, unpacked so that nothing lands where it was not sent.

The first part of each name is dropped, as npm does: packages call their folder as they like. What is taken is decided
by the recipe, and a name that leads out, a link that does, a device or a hard link ends the build.
"""

import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from images.errors import ImageError

# The whole of an archive, as `[[npm]]` and `[[supplied]]` may name it.
WHOLE = "."

# Far more than any package has: an archive beyond these was made to fill a disk.
_MOST_BYTES = 4 << 30
_MOST_MEMBERS = 200_000


def unpack(archive: Path, into: Path, picks: Mapping[str, str]) -> None:
    """Put what `picks` names, by its path in the archive, at its path below `into`. Raises `ImageError`.

    If this raises, what was unpacked already is still there: `into` is the caller's to remove.
    """
    found: set[str] = set()
    links: list[tuple[Path, str]] = []
    try:
        with tarfile.open(archive, mode="r:gz") as opened:
            for member, path in _members(opened, archive):
                for source, target in picks.items():
                    if (place := _place(path, source, target)) is not None:
                        found.add(source)
                        _check(archive, member, path, source)
                        _check_way(into, into / place)
                        _take(opened, member, into / place, links)
    except (tarfile.TarError, EOFError, zlib.error) as exc:
        raise ImageError(f"{archive}: is not a whole .tar.gz archive: {exc}") from exc
    if missing := sorted(set(picks) - found):
        raise ImageError(f"{archive}: has no {', '.join(missing)}")
    # Last, so that nothing was ever written through one.
    for link, to in links:
        link.symlink_to(to)


def _members(opened: tarfile.TarFile, archive: Path) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
    """Yield each member with its path below the archive's folder, checked."""
    size = 0
    for number, member in enumerate(opened, start=1):
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or "\\" in member.name:
            raise ImageError(f"{archive}: {member.name!r} leads out of the archive")
        size += member.size
        if number > _MOST_MEMBERS or size > _MOST_BYTES:
            raise ImageError(f"{archive}: is larger than {_MOST_BYTES >> 30} GiB or {_MOST_MEMBERS} files")
        if not (member.isreg() or member.isdir() or member.issym()):
            raise ImageError(f"{archive}: {member.name!r} is neither a file, a folder nor a symbolic link")
        if member.issym() and not _stays(path, member.linkname):
            raise ImageError(f"{archive}: {member.name!r} is a link that leads out, to {member.linkname!r}")
        if len(path.parts) > 1:
            yield member, PurePosixPath(*path.parts[1:])


def _stays(path: PurePosixPath, target: str) -> bool:
    """Whether a link at `path` ends in the archive's own folder, wherever that is."""
    depth = len(path.parts) - 2  # how far below the archive's folder the link is
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or part == "/":
            return False
    return True


def _check(archive: Path, member: tarfile.TarInfo, path: PurePosixPath, source: str) -> None:
    """What a link means in the archive it does not mean elsewhere: it has to stay in what is taken with it."""
    if source == WHOLE or not member.issym():
        return
    if not _stays(PurePosixPath("archive") / path.relative_to(source), member.linkname):
        raise ImageError(f"{archive}: {member.name!r} is a link out of {source!r}, to {member.linkname!r}")


def _check_way(into: Path, place: Path) -> None:
    """What is there already may have links of its own, of an image or of another archive."""
    if not place.parent.resolve().is_relative_to(into.resolve()):
        raise ImageError(f"{place}: a link on the way leads out of {into}")


def _place(path: PurePosixPath, source: str, target: str) -> str | None:
    """Where `path` goes if `source` of the archive goes to `target`; None if it is not part of `source`."""
    if source == WHOLE:
        return f"{target.lstrip('/')}/{path}"
    if not path.is_relative_to(source):
        return None
    return str(PurePosixPath(target.lstrip("/")) / path.relative_to(source))


def _take(opened: tarfile.TarFile, member: tarfile.TarInfo, place: Path, links: list[tuple[Path, str]]) -> None:
    (place if member.isdir() else place.parent).mkdir(mode=0o755, parents=True, exist_ok=True)
    if member.issym():
        links.append((place, member.linkname))
    elif member.isreg():
        content = opened.extractfile(member)
        if content is None:
            raise ImageError(f"{member.name!r} has no content")
        place.unlink(missing_ok=True)  # an archive may have a name twice; the last one counts
        with content, place.open("xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        place.chmod(0o755 if member.mode & 0o111 else 0o644)
        os.utime(place, (member.mtime, member.mtime))
