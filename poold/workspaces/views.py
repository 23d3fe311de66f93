"""What is told of workspaces: pages of them, of their versions, and what is different between two."""

import difflib
from dataclasses import asdict
from typing import Any

from contract.asked import DiffAsked, VersionsAsked, WorkspacesAsked
from contract.errors import NotFound
from contract.workspaces import no_workspace
from poold.workspaces import content, listing
from poold.workspaces.listing import Listing
from poold.workspaces.manifest import Manifest
from poold.workspaces.places import Place
from poold.workspaces.shelf import Shelf

MAX_TEXT = 1 << 20


async def workspaces(shelf: Shelf, owner: str, asked: WorkspacesAsked) -> dict[str, Any]:
    names = await shelf.names(owner, asked.after or "", asked.limit + 1)
    page = names[: asked.limit]
    found = await shelf.newest_of(owner, page)
    return {"workspaces": [each.summary() for each in found], "next": page[-1] if len(names) > len(page) else None}


async def workspace(shelf: Shelf, place: Place) -> dict[str, Any]:
    found = await shelf.newest_of(place.owner, [place.name])
    if not found:
        raise no_workspace(place.name)
    return found[0].summary()


async def versions(shelf: Shelf, place: Place, asked: VersionsAsked) -> dict[str, Any]:
    numbers = (await shelf.numbers(place))[::-1]
    if not numbers:
        raise no_workspace(place.name)
    older = [number for number in numbers if asked.before is None or number < asked.before]
    page = older[: asked.limit]
    found = await shelf.versions_of(place, page)
    following = page[-1] if len(older) > len(page) else None
    return {"versions": [each.version_view() for each in found], "next": following}


async def diff(shelf: Shelf, place: Place, asked: DiffAsked) -> dict[str, Any]:
    """Raises `NotFound` if there is no such version, or no such path in either."""
    later = await shelf.must_have(place, asked.after)
    number = later.parent if asked.before is None else asked.before
    earlier = None if number is None else await _earlier(shelf, place, number, is_asked=asked.before is not None)
    before = {} if earlier is None else await shelf.listing(place, earlier)
    after = await shelf.listing(place, later)
    path = None if asked.path is None else listing.found(after if asked.path in after else before | after, asked.path)
    if path is not None and path not in before and path not in after:
        raise NotFound(f"neither version has {asked.path!r}", path=asked.path)
    changes = listing.changes(before, after, path)
    text = None
    if path is not None and changes:
        text = await _text(shelf, place, (earlier, before), (later, after), path)
    return {
        "from": None if earlier is None else earlier.version,
        "to": later.version,
        "changes": [asdict(change) for change in changes[: asked.limit]],
        "truncated": len(changes) > asked.limit,
        "text": text,
    }


async def _earlier(shelf: Shelf, place: Place, number: int, *, is_asked: bool) -> Manifest | None:
    """What a version was made from may be no more."""
    try:
        return await shelf.manifest(place, number)
    except NotFound:
        if is_asked:
            raise
        return None


Side = tuple[Manifest | None, Listing]


async def _text(shelf: Shelf, place: Place, old: Side, new: Side, path: str) -> str | None:
    """A unified diff, if both are text."""
    lines = []
    for whole, known in (old, new):
        data: bytes | None = b""
        if whole is not None and path in known:
            data = await content.content(shelf, place, whole, known, path, most=MAX_TEXT)
        if data is None or b"\0" in data:
            return None
        try:
            lines.append(data.decode().splitlines(keepends=True))
        except UnicodeDecodeError:
            return None
    name = listing.shown(path)
    told = difflib.unified_diff(lines[0], lines[1], f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in told)
