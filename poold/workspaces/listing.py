"""What there is in one version of a workspace: every path with its kind, mode, owner, size and hash. No I/O.

Paths are relative to the workspace. Bytes that are no UTF-8 are kept as Python keeps them in names of files.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace

import zstandard

from contract.workspaces import Change
from poold.workspaces.errors import Damaged

FORMAT = 1
KINDS = ("file", "folder", "symlink", "fifo")
LEVEL = 3
MAX_RAW = 512 << 20  # of a listing, before it was compressed
MAX_NUMBER = 1 << 53


@dataclass(frozen=True, slots=True)
class Item:
    """One path. Another name of a file that is there already has its content, and says in `hard` whose."""

    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    sha256: str | None  # of a file's data; of a sparse one's as it is stored in a tar stream
    link: str | None  # where a symlink leads
    hard: str | None
    pack: int  # in which of the version's packs it is

    @property
    def content(self) -> tuple[object, ...]:
        """What makes it another one if it changes."""
        return self.kind, self.mode, self.uid, self.gid, self.size, self.sha256, self.link

    @property
    def told_size(self) -> int | None:
        return None if self.kind == "folder" else self.size


Listing = dict[str, Item]


class Inconsistent(Exception):
    """What a guest says has changed does not fit what there was: all of it is needed."""


def overlaid(before: Listing, gone: Iterable[str], changed: Listing, pack: int) -> Listing:
    """`before`, without what is gone and with what changed, which is in pack number `pack`. Raises `Inconsistent`."""
    removed = set(gone)
    after = {path: item for path, item in before.items() if removed.isdisjoint(_ways(path))}
    after |= {path: replace(item, pack=pack) for path, item in changed.items()}
    for path, item in after.items():
        above = after.get(path.rpartition("/")[0]) if "/" in path else None
        if "/" in path and (above is None or above.kind != "folder"):
            raise Inconsistent(path)
        if item.hard is not None:
            other = after.get(item.hard)
            if other is None or other.pack != item.pack or other.hard is not None or other.sha256 != item.sha256:
                raise Inconsistent(path)
    return after


def _ways(path: str) -> list[str]:
    """The path, and every folder above it."""
    ways, at = [path], path.find("/")
    while at >= 0:
        ways.append(path[:at])
        at = path.find("/", at + 1)
    return ways


def is_same(one: Listing, other: Listing) -> bool:
    return one.keys() == other.keys() and all(item.content == other[path].content for path, item in one.items())


def totals(listing: Listing) -> tuple[int, int]:
    """How many bytes, and how many files. A file with two names is one."""
    files = [item for item in listing.values() if item.kind != "folder"]
    return min(MAX_NUMBER, sum(item.size for item in files if item.hard is None)), len(files)


def changes(before: Listing, after: Listing, path: str | None = None) -> list[Change]:
    """What is different, by path."""
    found = []
    wanted = sorted(before.keys() | after.keys()) if path is None else [path]
    for each in wanted:
        old, new = before.get(each), after.get(each)
        if old is not None and new is not None:
            if old.content != new.content:
                found.append(Change(shown(each), "changed", old.told_size, new.told_size))
        elif old is not None:
            found.append(Change(shown(each), "removed", old.told_size, None))
        elif new is not None:
            found.append(Change(shown(each), "added", None, new.told_size))
    return found


def shown(path: str) -> str:
    """A path that JSON can have."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def found(listing: Listing, path: str) -> str:
    """The path of the listing that is shown as `path`."""
    if path in listing:
        return path
    return next((each for each in listing if shown(each) == path), path)


def encode(listing: Listing) -> bytes:
    """Blocks for a moment: a workspace may have a hundred thousand files."""
    items = [[path, *astuple(item)] for path, item in sorted(listing.items())]
    raw = json.dumps({"format": FORMAT, "items": items}, separators=(",", ":")).encode()
    return zstandard.ZstdCompressor(level=LEVEL).compress(raw)


def decode(key: str, data: bytes, packs: int) -> Listing:
    """Raises `Damaged` if it makes no sense. Blocks for a moment."""
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size > MAX_RAW:
            raise ValueError(f"it has {size} bytes")
        facts = json.loads(zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_RAW))
        if facts["format"] != FORMAT:
            raise Damaged(key, f"it has format {facts['format']!r} and this poold knows {FORMAT}")
        listing = {str(path): _item(*rest, packs=packs) for path, *rest in facts["items"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zstandard.ZstdError) as error:
        raise Damaged(key, f"it makes no sense ({type(error).__name__}: {error})") from error
    return listing


def _item(  # noqa: PLR0917 — a row
    kind: object,
    mode: object,
    uid: object,
    gid: object,
    size: object,
    sha256: object,
    link: object,
    hard: object,
    pack: object,
    *,
    packs: int,
) -> Item:
    if kind not in KINDS:
        raise ValueError(f"{kind!r:.80} is not a kind")
    place = _number(pack)
    if place >= packs:
        raise ValueError(f"it tells of pack {place} of {packs}")
    return Item(
        str(kind),
        _number(mode),
        _number(uid),
        _number(gid),
        _number(size),
        _text_or_none(sha256),
        _text_or_none(link),
        _text_or_none(hard),
        place,
    )


def _text_or_none(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > 8192:
        raise ValueError(f"{value!r:.80} is not a text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{value!r:.80} is not a number")
    return value
